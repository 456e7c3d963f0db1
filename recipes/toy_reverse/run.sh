#!/usr/bin/env bash
# Letters to the same letters in reverse order, from nothing, in about a minute on a CPU:
#   recipes/toy_reverse/run.sh [section.key=value ...]
# Fails unless nearly all of the test set is reversed right.
set -euo pipefail
cd "$(dirname "$0")/../.."
data=data/toy_reverse run=${RUN:-runs/toy_reverse}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # so small a model gains nothing from a second thread
python recipes/toy_reverse/prepare.py
seq2seq train recipes/toy_reverse/recipe.yaml --run "$run" "$@"
seq2seq translate "$run" $data/test.src -o "$run"/test.hyp
seq2seq score "$run"/test.hyp $data/test.rev
right=$(paste "$run"/test.hyp $data/test.rev | awk -F '\t' '$1 == $2' | wc -l)
total=$(wc -l <$data/test.rev)
echo "$right of $total reversed right"
[ "$right" -ge $((total * 99 / 100)) ] || {
    echo "toy_reverse: fewer than 99 % are right: the toy was not learned" >&2
    exit 1
}
