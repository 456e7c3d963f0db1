#!/usr/bin/env bash
# Translate sentences together with the 0, 1 or 2 sentences before them: LibreOffice's help, English to German.
#   recipes/context/run.sh [section.key=value ...]
# The same command resumes: a file that exists is not made again.
set -euo pipefail
[[ ${1:-} != -* ]] || {
    echo "usage: recipes/context/run.sh [section.key=value ...]" >&2
    exit 2
}
cd "$(dirname "$0")/../.."
[ ! -x .venv/bin/seq2seq ] || PATH=$PWD/.venv/bin:$PATH
data=data/context_en_de
python recipes/libreoffice/prepare.py de
[ -e $data/train.de ] || python recipes/context/prepare.py de

for count in 0 1 2; do
    run=runs/context/$count
    joined=$data/$count
    mkdir -p $joined
    for split in train dev test; do
        [ -e $joined/$split.de ] || {
            python recipes/context/join.py $count <$data/$split.en >$joined/$split.en
            cp $data/$split.de $joined
        }
    done
    # No rules against repetitions, as a line after other lines is another source, and none for the ratio of lengths.
    scripts/train recipes/libreoffice/recipe.yaml --run $run name=context data.train=$joined/train \
        data.dev=$joined/dev data.test=$joined/test "data.clean={duplicates: false, overlap: false, max_ratio: null}" \
        "data.protect=[]" "data.augment={}" decoding.paragraphs=false training.max_steps=2000 training.max_minutes=null \
        "$@"
    seq2seq evaluate $run --split test

    # The share of translations with the right term that are more probable than those with another.
    python recipes/context/contrast.py <(cat $data/{dev,test}.en) <(cat $data/{dev,test}.de) \
        <(cat $joined/{dev,test}.en) $run/contrast
    for side in right wrong; do
        seq2seq translate $run $run/contrast.en --score-target $run/contrast.$side --scores -o $run/$side.scores
    done
    paste $run/right.scores $run/wrong.scores | awk -F '\t' -v run=$run '
        { right += $2 > $5 } END { print run ": the right term in " right " of " NR }'
done
