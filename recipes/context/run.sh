#!/usr/bin/env bash
# Translate sentences together with the 0, 1 or 2 sentences before them: LibreOffice's help, English to German.
#   recipes/context/run.sh [section.key=value ...]
# The same command resumes: a file that exists is not made again.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ ! -x .venv/bin/seq2seq ] || PATH=$PWD/.venv/bin:$PATH
data=data/context_en_de
python recipes/libreoffice/prepare.py de
[ -e $data/train.de ] || python recipes/context/prepare.py de

for count in 0 1 2; do
    run=runs/context/$count
    sets=()
    for split in train dev test; do
        joined=$data/$split.$count.en
        [ -e $joined ] || python recipes/context/join.py $count <$data/$split.en >$joined
        sets+=("data.$split={source: $joined, target: $data/$split.de}")
    done
    scripts/train recipes/context/recipe.yaml --run $run "${sets[@]}" "$@"
    seq2seq evaluate $run --split test

    # The share of translations with the right term that are more probable than those with another.
    python recipes/context/contrast.py <(cat $data/{dev,test}.en) <(cat $data/{dev,test}.de) \
        <(cat $data/{dev,test}.$count.en) $run/contrast
    for side in right wrong; do
        seq2seq translate $run $run/contrast.en --score-target $run/contrast.$side --scores -o $run/$side.scores
    done
    paste $run/right.scores $run/wrong.scores | awk -F '\t' -v run=$run '
        { right += $2 > $5 } END { print run ": the right term in " right " of " NR }'
done
