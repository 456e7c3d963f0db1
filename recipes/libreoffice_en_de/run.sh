#!/usr/bin/env bash
# English-German from LibreOffice's help and menus: corpus, training, translations, scores.
set -euo pipefail
cd "$(dirname "$0")/../.."
data=data/libreoffice_en_de run=runs/libreoffice_en_de
python recipes/libreoffice_en_de/prepare.py
seq2seq train recipes/libreoffice_en_de/recipe.yaml
seq2seq translate $run $data/test.en -o $run/test.hyp.de
echo "Some lines of the test set, their translations, and the references:"
paste -d '\n' $data/test.en $run/test.hyp.de $data/test.de | sed 'N;N;s/^/\n/' | awk 'NR > 400 && NR <= 424'
echo
seq2seq score $run/test.hyp.de $data/test.de
