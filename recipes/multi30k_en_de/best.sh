#!/usr/bin/env bash
# The best of Multi30k in an hour on two cores: recipes/multi30k_en_de/best.sh FOLDER [SUFFIX]
# FOLDER holds train, val and test_2016_flickr as SUFFIX.en and SUFFIX.de: .lc.norm.tok for the
# published, lower-cased tokens (the default), '' for raw text. Trains two models at the same time,
# one thread each: that of best.yaml, and one with R-Drop, small updates, less dropout and a rate
# that falls to 0; then both form an ensemble. An interrupted run is resumed.
set -euo pipefail
folder=$(cd "${1:?name the folder with the data}" && pwd)
suffix=${2-.lc.norm.tok}
cd "$(dirname "$0")/../.."
if [ -n "$suffix" ]; then tokenized=true tokenize=none; else tokenized=false tokenize=13a; fi
runs=runs/multi30k_best$suffix
mkdir -p "$runs"

recipe=(
    recipes/multi30k_en_de/best.yaml data.tokenized=$tokenized "data.train=$folder/train$suffix"
    "data.dev=$folder/val$suffix" "data.test=$folder/test_2016_flickr$suffix"
)
train=(env OMP_NUM_THREADS=1 seq2seq train "${recipe[@]}")

seq2seq prepare "${recipe[@]}" >/dev/null # once, instead of by both trainings at the same time
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"${train[@]}" --run "$runs/r_drop" training.seed=2 training.r_drop=3 model.dropout=0.2 \
    training.schedule=cosine training.batch_tokens=2048 training.lr=0.005 \
    training.warmup_steps=200 training.average_last=0 training.validate_every_epochs=2 \
    >"$runs/r_drop.log" 2>&1 &
"${train[@]}" --run "$runs/averaged"
wait $! || { tail "$runs/r_drop.log" >&2 && exit 1; }
for split in val test_2016_flickr; do
    seq2seq translate "$runs/averaged/averaged" --with "$runs/r_drop/best" \
        "$folder/$split$suffix.en" -o "$runs/$split.hyp"
    echo "$split"
    seq2seq score "$runs/$split.hyp" "$folder/$split$suffix.de" --tokenize $tokenize
done
