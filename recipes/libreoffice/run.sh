#!/usr/bin/env bash
# English to another language from LibreOffice's help and menus: corpus, training, translations, scores.
#   recipes/libreoffice/run.sh [LANGUAGE] [section.key=value ...]
# LANGUAGE is de, fr, ja, ... (prepare.py --help), or `many` for one model of eight languages.
# With data.train=PREFIX data.dev=PREFIX data.test=PREFIX it trains on your own files instead.
set -euo pipefail
cd "$(dirname "$0")/../.."
language=de
case ${1:-} in
"" | *=*) ;;
*) language=$1 && shift ;;
esac
recipe=recipes/libreoffice/recipe.yaml data=data/libreoffice_en_$language run=${RUN:-runs/libreoffice_en_$language}

if [[ " $*" == *" data.train="* ]]; then
    scripts/train $recipe --run "$run" "data.target='$language'" "$@"
    seq2seq evaluate "$run" --split test
    exit
fi
if [ "$language" = many ]; then
    for each in de fr es it pt nl ru ja; do python recipes/libreoffice/prepare.py $each; done
    scripts/train recipes/libreoffice/many.yaml --run "$run" "$@"
    seq2seq evaluate "$run"
    exit
fi
python recipes/libreoffice/prepare.py "$language"
files=()
[ "$language" = de ] || files=("name=libreoffice_en_$language" "data.target='$language'"
    "data.train=$data/train" "data.dev=$data/dev" "data.test=$data/test")
scripts/train $recipe --run "$run" ${files[@]+"${files[@]}"} "$@"
seq2seq translate "$run" "$data/test.en" -o "$run/test.hyp.$language"
echo "From the test set: source, translation, reference"
paste -d '\n' "$data/test.en" "$run/test.hyp.$language" "$data/test.$language" |
    awk 'NR % 720 >= 1 && NR % 720 <= 3 { if (NR % 720 == 1) print ""; print "  " $0 }'
echo
seq2seq score "$run/test.hyp.$language" "$data/test.$language"
