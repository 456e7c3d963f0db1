#!/usr/bin/env bash
# Multi30k English-German: recipes/multi30k_en_de/run.sh [FOLDER] [section.key=value ...]
# FOLDER holds train, val and test_2016_flickr as .en and .de; without it, the data set comes from
# the Hugging Face hub.
set -euo pipefail
if [[ -n ${1:-} && $1 != *=* ]]; then
    folder=$(cd "$1" && pwd)
    shift
    set -- "data.train=$folder/train" "data.dev=$folder/val" "data.test=$folder/test_2016_flickr" \
        "$@"
fi
cd "$(dirname "$0")/../.."
run=${RUN:-runs/multi30k_en_de}
scripts/train recipes/multi30k_en_de/recipe.yaml --run "$run" "$@"
seq2seq evaluate "$run" --split test
