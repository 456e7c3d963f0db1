#!/usr/bin/env bash
# Train on back-translated text, too: monolingual text in the target language and its machine translations.
#   recipes/back_translation/run.sh RECIPE MONOLINGUAL [section.key=value ...]
# RECIPE, such as `seq2seq new` writes, has one training corpus, given by its prefix; MONOLINGUAL is a file of
# sentences in its target language. The same command resumes: a file that exists is not made again.
set -euo pipefail
recipe=${1:?give a RECIPE, such as recipes/mine.yaml} monolingual=${2:?give a file of MONOLINGUAL text}
shift 2
environment=$(cd "$(dirname "$0")/../.." && pwd)
PATH=$environment/.venv/bin:$environment/scripts:$PATH

values=$(python "$environment/recipes/values.py" name data.source data.target data.train \
    training.max_steps training.max_minutes training.lr -- "$recipe" "$@")
read -r name source target corpus steps minutes lr <<<"$values"
runs=runs/$name
translated=$runs/monolingual.$source

# One model for the back-translations, and one that says how well they fit; it is also the baseline.
train "$recipe" --run "$runs/backward" "$@" "data.source='$target'" "data.target='$source'"
train "$recipe" --run "$runs/forward" "$@"

[ -e "$translated" ] || seq2seq translate "$runs/backward" "$monolingual" --beam 1 -o "$translated"
[ -e "$runs/scores" ] || {
    seq2seq translate "$runs/forward" "$translated" --score-target "$monolingual" \
        --penalty-form power --length-penalty 1 | cut -f 1 | sed 's/^$/-99/' >"$runs/scores.part"
    mv "$runs/scores.part" "$runs/scores"
}

[ -e "$runs/noised.$source" ] || {
    python "$environment/recipes/back_translation/noise.py" <"$translated" >"$runs/noised.part"
    mv "$runs/noised.part" "$runs/noised.$source"
}

# Prints the limits of a training of a share of the recipe's updates and minutes.
limits() {
    awk -v steps="$steps" -v minutes="$minutes" -v share="$1" 'BEGIN {
        print "training.max_steps=" int(steps * share)
        print "training.max_minutes=" (minutes == "None" ? "null" : minutes * share) }'
}

# First the corpus and the translations that fit best, with a tag (Caswell et al. 2019); then the corpus alone.
train "$recipe" --run "$runs/mixed" "$@" $(limits 0.67) "data.clean.best_share=0.9" \
    "data.train=[{path: $corpus},
        {source: $runs/noised.$source, target: $monolingual, scores: $runs/scores, tag: <translated>}]"
train "$recipe" --run "$runs/final" "$@" $(limits 0.33) "training.init_from=$runs/mixed" \
    "training.lr=$(awk "BEGIN { print $lr / 2 }")"
for run in forward final; do seq2seq evaluate "$runs/$run" --split test; done
