#!/usr/bin/env bash
# Train a small, fast model on what an ensemble of two large ones translates.
#   recipes/distillation/run.sh RECIPE [section.key=value ...]
# RECIPE, such as `seq2seq new` writes, is the recipe of the teachers; it has one training corpus. Students have the
# encoder and decoder layers of STUDENTS, such as "6+2 6+1", and the width DIM, by default half of the width of the
# teachers. The same command resumes: a file that exists is not made again.
set -euo pipefail
[[ $# -gt 0 && $1 != -* ]] || {
    echo "usage: recipes/distillation/run.sh RECIPE [section.key=value ...]" >&2
    exit 2
}
recipe=$1
shift
environment=$(cd "$(dirname "$0")/../.." && pwd)
here=$environment/recipes/distillation
PATH=$environment/.venv/bin:$environment/scripts:$PATH

values=$(python "$environment/recipes/values.py" "$recipe" "$@")
eval "$values" # name, source, target, ...; and more arguments, for sets that are held out
runs=runs/$name
test=$prepared/test
chosen=$runs/chosen.$target

train "$recipe" --run "$runs/teacher1" "$@" training.seed=1
train "$recipe" --run "$runs/teacher2" "$@" training.seed=2

"$environment/recipes/translate_parts.sh" "$source_text" "$runs/nbest.jsonl" 5000 \
    "$runs/teacher1" --with "$runs/teacher2" --nbest 4 --beam 4 --json
[ -e "$chosen" ] || {
    python "$here/choose.py" "$runs/nbest.jsonl" "$target_text" >"$chosen.part"
    mv "$chosen.part" "$chosen"
}

# A plain Transformer, as Hugging Face and CTranslate2 run it.
width=${DIM:-$((dim / 2))}
systems=()
for layers in ${STUDENTS:-6+2}; do
    student=$runs/student${layers}_$width
    train "$recipe" --run "$student" "$@" "data.train={source: $source_text, target: $chosen}" \
        model.encoder_layers="${layers%+*}" model.decoder_layers="${layers#*+}" model.dim="$width" \
        model.ffn_dim=$((ffn_dim * width / dim)) model.num_heads=$((num_heads * width / dim)) model.norm=pre \
        model.positions=sinusoidal model.activation=relu
    systems+=("$student/test.$target")
    seq2seq translate "$student" "$test.$source" --precision int8 -o "${systems[-1]}"
done
seq2seq translate "$runs/teacher1" --with "$runs/teacher2" "$test.$source" -o "$runs/test.$target"
seq2seq score "$runs/test.$target" "$test.$target" --against "${systems[@]}"
