#!/usr/bin/env bash
# The published Transformer-Tiny: recipes/multi30k_en_de/paper_tiny.sh FOLDER [SEED ...]
# FOLDER holds train, val and test_2016_flickr as .lc.norm.tok.en and .lc.norm.tok.de. Trains a model
# for each seed (1 2 3) and scores the average of its last ten epochs on the tokens as they are. A
# run that was interrupted is resumed.
set -euo pipefail
folder=$(cd "${1:?name the folder with the data}" && pwd)
shift
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- 1 2 3
for seed in "$@"; do
    run=runs/multi30k_paper_tiny/seed$seed
    seq2seq train recipes/multi30k_en_de/paper_tiny.yaml --run "$run" training.seed="$seed" \
        data.train="$folder/train.lc.norm.tok" data.dev="$folder/val.lc.norm.tok" \
        data.test="$folder/test_2016_flickr.lc.norm.tok"
    seq2seq translate "$run" --checkpoint averaged "$folder/test_2016_flickr.lc.norm.tok.en" \
        -o "$run/test_2016_flickr.hyp"
    echo "seed $seed"
    seq2seq score "$run/test_2016_flickr.hyp" "$folder/test_2016_flickr.lc.norm.tok.de" \
        --tokenize none
done
