#!/usr/bin/env bash
# Train on back-translated text, too: monolingual text in the target language and its machine translations.
#   recipes/back_translation/run.sh RECIPE MONOLINGUAL [section.key=value ...]
# RECIPE, such as `seq2seq new` writes, has one training corpus; MONOLINGUAL is a file of sentences in its target language.
# The same command resumes: a file that exists is not made again.
set -euo pipefail
[[ $# -gt 1 && $1 != -* ]] || {
    echo "usage: recipes/back_translation/run.sh RECIPE MONOLINGUAL [section.key=value ...]" >&2
    exit 2
}
recipe=$1 monolingual=$2
[ -f "$monolingual" ] || {
    echo "run.sh: error: file not found: $monolingual" >&2
    exit 1
}
shift 2
environment=$(cd "$(dirname "$0")/../.." && pwd)
PATH=$environment/.venv/bin:$environment/scripts:$PATH

values=$(python "$environment/recipes/values.py" "$recipe" "$@")
eval "$values" # name, source, target, ...; and more arguments, for sets that are held out
runs=runs/$name
work=$runs/$(basename "$monolingual") # another text has another folder
mkdir -p "$work"
translated=$work/translated.$source

# One model for the back-translations, and one that says how well they fit; it is also the baseline.
train "$recipe" --run "$runs/backward" "$@" "data.source='$target'" "data.target='$source'" \
    "data.train={source: $target_text, target: $source_text}"
train "$recipe" --run "$runs/forward" "$@"

"$environment/recipes/translate_parts.sh" "$monolingual" "$translated" 100000 "$runs/backward" --beam 1
SCORE_TARGET=$monolingual "$environment/recipes/translate_parts.sh" "$translated" "$work/scored" 100000 "$runs/forward" \
    --penalty-form power --length-penalty 1
cut -f 1 "$work/scored" | sed 's/^$/-99/' >"$work/scores"

# Prints the limits of a training of a share of the recipe's updates and minutes.
limits() {
    awk -v steps="$steps" -v minutes="$minutes" -v share="$1" 'BEGIN {
        print "training.max_steps=" int(steps * share)
        print "training.max_minutes=" (minutes == "None" ? "null" : minutes * share) }'
}

# First the corpus, twice, and the translations that fit best, with a tag (Caswell et al. 2019); then the corpus alone.
train "$recipe" --run "$work/mixed" "$@" $(limits 0.8) "data.clean.best_share=0.9" \
    "data.train=[{source: $source_text, target: $target_text, weight: 2},
        {source: $translated, target: $monolingual, scores: $work/scores, tag: <translated>}]"
train "$recipe" --run "$work/final" "$@" $(limits 0.2) "training.init_from=$work/mixed" \
    "training.lr=$(awk "BEGIN { print $lr / 2 }")"
for run in "$runs/forward" "$work/final"; do seq2seq evaluate "$run"; done
