#!/usr/bin/env bash
# WMT14 English-German from nothing to the score:
#   recipes/wmt14_en_de/run.sh [RECIPE] [FOLDER] [section.key=value ...]
# RECIPE: base (the default), big, t2t or fairseq_big. FOLDER holds the WMT site's archives; without
# it, the data set comes from the Hugging Face hub.
set -euo pipefail
recipe=base folder=
fail() {
    echo "run.sh: error: $1" >&2
    exit 1
}
if [[ ${1:-} =~ ^(base|big|t2t|fairseq_big)$ ]]; then
    recipe=$1
    shift
fi
if [[ -n ${1:-} && $1 != *=* ]]; then
    [ -d "$1" ] || fail "$1 is neither a folder nor one of base, big, t2t, fairseq_big"
    folder=$(cd "$1" && pwd)
    shift
fi
[[ -z ${1:-} || $1 == *=* ]] || fail "$1: the recipe comes first, then the folder, then key=value"
cd "$(dirname "$0")/../.."
python -c "import sacremoses" 2>/dev/null ||
    fail "the score needs sacremoses: python -m pip install -e '.[wmt14]'"
here=recipes/wmt14_en_de data=data/wmt14_en_de run=runs/wmt14_en_de
[ "$recipe" = base ] || run+=_$recipe
run=${RUN:-$run}
python $here/prepare.py ${folder:+"$folder"} --out $data
if [ "$folder" ]; then
    set -- "data.train=[$data/europarl-v7, $data/commoncrawl, $data/news-commentary-v9]" \
        "data.dev=$data/newstest2013" "data.test=$data/newstest2014" "$@"
fi
scripts/train $here/$recipe.yaml --run "$run" "$@"
cp $data/SHA256SUMS "$run" # starts.jsonl has only what training read
echo "translating newstest2014" >&2
seq2seq translate "$run" --checkpoint averaged $data/newstest2014.en -o "$run/newstest2014.hyp.de"
python $here/score.py "$run/newstest2014.hyp.de" $data/newstest2014.de \
    --source $data/newstest2014.en \
    --filtered $data/newstest2014-filtered.en $data/newstest2014-filtered.de |
    tee "$run/newstest2014.scores"
