#!/usr/bin/env bash
# English-German from LibreOffice's help and menus: corpus, training, translations, scores.
#   recipes/libreoffice_en_de/run.sh [section.key=value ...]
# With data.train=PREFIX data.dev=PREFIX data.test=PREFIX it trains on your own files instead.
set -euo pipefail
cd "$(dirname "$0")/../.."
recipe=recipes/libreoffice_en_de/recipe.yaml data=data/libreoffice_en_de run=${RUN:-runs/libreoffice_en_de}

if [[ " $*" == *" data.train="* ]]; then
    scripts/train $recipe --run "$run" "$@"
    seq2seq evaluate "$run" --split test
    exit
fi
python recipes/libreoffice_en_de/prepare.py
scripts/train $recipe --run "$run" "$@"
seq2seq translate "$run" $data/test.en -o "$run"/test.hyp.de
echo "From the test set: source, translation, reference"
paste -d '\n' $data/test.en "$run"/test.hyp.de $data/test.de |
    awk 'NR % 720 >= 1 && NR % 720 <= 3 { if (NR % 720 == 1) print ""; print "  " $0 }'
echo
seq2seq score "$run"/test.hyp.de $data/test.de
