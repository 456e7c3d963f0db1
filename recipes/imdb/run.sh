#!/usr/bin/env bash
# IMDb reviews: recipes/imdb/run.sh [FOLDER] [section.key=value ...]
# FOLDER holds train.tsv and test.tsv (or .tsv.gz), lines of `label<TAB>text`; without it, the data
# set comes from the Hugging Face hub.
set -euo pipefail
if [[ -n ${1:-} && $1 != *=* ]]; then
    folder=$(cd "$1" && pwd)
    shift
    for split in train test; do
        file=$folder/$split.tsv
        [ -e "$file" ] || file=$file.gz
        set -- "data.$split=$file" "$@"
    done
fi
cd "$(dirname "$0")/../.."
run=${RUN:-runs/imdb}
scripts/train recipes/imdb/recipe.yaml --run "$run" "$@"
seq2seq evaluate "$run" --split test
