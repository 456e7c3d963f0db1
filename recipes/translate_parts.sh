#!/usr/bin/env bash
# `seq2seq translate` a long file in parts, so that the same command resumes at the part that was interrupted.
#   recipes/translate_parts.sh INPUT OUTPUT LINES RUN [option ...]
# With SCORE_TARGET=FILE before the command, it scores the lines of FILE as translations of INPUT.
set -euo pipefail
input=$1 output=$2 lines=$3
shift 3
[ ! -e "$output" ] || exit 0
parts=$output.parts
mkdir -p "$parts"/{input,target,output}
split -l "$lines" "$input" "$parts/input/"
[ -z "${SCORE_TARGET:-}" ] || split -l "$lines" "$SCORE_TARGET" "$parts/target/"
for part in "$parts"/input/*; do
    name=$(basename "$part")
    echo "$output: part $name of $(ls "$parts/input" | tail -n 1)" >&2
    [ -e "$parts/output/$name" ] ||
        seq2seq translate "$@" ${SCORE_TARGET:+--score-target "$parts/target/$name"} "$part" -o "$parts/output/$name"
done
cat "$parts"/output/* >"$output.part"
mv "$output.part" "$output"
rm -r "$parts"
