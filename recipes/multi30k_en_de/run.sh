#!/usr/bin/env bash
# Multi30k English-German: recipes/multi30k_en_de/run.sh [FOLDER]
# FOLDER holds train, val and test_2016_flickr as .en and .de; without it, the data set comes from
# the Hugging Face hub.
set -euo pipefail
folder=${1:+$(realpath "$1")}
cd "$(dirname "$0")/../.."
run=runs/multi30k_en_de
overrides=()
if [ -n "$folder" ]; then
    overrides=("data.train=$folder/train" "data.dev=$folder/val" "data.test=$folder/test_2016_flickr")
fi
seq2seq train recipes/multi30k_en_de/recipe.yaml "${overrides[@]}"
seq2seq evaluate $run --split test
