#!/usr/bin/env bash
# Letters to the same letters in reverse order: half a minute on a CPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
python recipes/toy_reverse/prepare.py
seq2seq train recipes/toy_reverse/recipe.yaml
seq2seq translate runs/toy_reverse data/toy_reverse/test.src -o runs/toy_reverse/test.hyp
seq2seq score runs/toy_reverse/test.hyp data/toy_reverse/test.rev
