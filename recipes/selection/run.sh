#!/usr/bin/env bash
# Select the good pairs of a noisy corpus by two translation models, and train on them.
#   recipes/selection/run.sh RECIPE [section.key=value ...]
# RECIPE, such as `seq2seq new` writes, has one training corpus. Without RECIPE, the corpus is LibreOffice's with damaged
# pairs. The same command resumes: a file that exists is not made again.
set -euo pipefail
[[ ${1:-} != -* && ${1:-} != *=* ]] || {
    echo "usage: recipes/selection/run.sh [RECIPE [section.key=value ...]]" >&2
    exit 2
}
environment=$(cd "$(dirname "$0")/../.." && pwd)
PATH=$environment/.venv/bin:$environment/scripts:$PATH
if [ $# = 0 ]; then
    cd "$environment"
    set -- recipes/libreoffice/recipe.yaml name=selection data.train=data/selection/train "data.protect=[]" \
        "data.augment={}" training.max_steps=2500 training.max_minutes=null
    for language in de fr; do python recipes/libreoffice/prepare.py $language; done
    [ -e data/selection/train.labels ] || python recipes/selection/make_noise.py data/libreoffice_en_de/train.{en,de} \
        data/libreoffice_en_fr/train.{en,fr} data/selection/train.{en,de}
fi
recipe=$1
shift

values=$(python "$environment/recipes/values.py" "$recipe" "$@")
eval "$values" # name, source, target, ...; and more arguments, for sets that are held out
runs=runs/$name

train "$recipe" --run "$runs/forward" "$@"
train "$recipe" --run "$runs/backward" "$@" "data.source='$target'" "data.target='$source'" \
    "data.train={source: $target_text, target: $source_text}"

# Log-probability per token of the target given the source, and of the source given the target.
mean=(--penalty-form power --length-penalty 1)
score() {
    echo "scoring $1 and $2 with $runs/forward and $runs/backward" >&2
    SCORE_TARGET=$2 "$environment/recipes/translate_parts.sh" "$1" "$3.forward" 100000 "$runs/forward" "${mean[@]}"
    SCORE_TARGET=$1 "$environment/recipes/translate_parts.sh" "$2" "$3.backward" 100000 "$runs/backward" "${mean[@]}"
    [ ! -e "$3" ] || return 0
    # Dual conditional cross-entropy (Junczys-Dowmunt 2018): 1 if both models are certain, 0 if one is not.
    paste <(cut -f 1 "$3.forward") <(cut -f 1 "$3.backward") | awk -F '\t' '{
        difference = $1 > $2 ? $1 - $2 : $2 - $1
        print ($1 == "" || $2 == "") ? 0 : exp(($1 + $2) / 2 - difference) }' >"$3.part"
    mv "$3.part" "$3"
}
score "$source_text" "$target_text" "$runs/scores"
score "$prepared/dev.$source" "$prepared/dev.$target" "$runs/dev_scores"

# The threshold that 70 % of the development set reach. Most good training pairs reach it, because both models have
# seen them.
threshold=$(sort -g "$runs/dev_scores" | awk '{ scores[NR] = $1 } END { print scores[int(NR * 0.3) + 1] }')
echo "dropping pairs with a score below $threshold; for example:"
paste "$runs/scores" "$source_text" "$target_text" | awk -F '\t' -v threshold="$threshold" '
    $1 < threshold { print "  " $0 }' | sort -gr | sed -n 1,10p
# The models have learned to translate to other languages of the corpus, too: a rule drops these.
train "$recipe" --run "$runs/selected" data.clean.languages=true "$@" \
    "data.train={source: $source_text, target: $target_text, scores: $runs/scores}" "data.clean.min_score=$threshold"
for run in forward selected; do seq2seq evaluate "$runs/$run"; done
