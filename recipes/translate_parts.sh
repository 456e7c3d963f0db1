#!/usr/bin/env bash
# `seq2seq translate` a long file in parts, so that the same command resumes at the part that was interrupted.
#   recipes/translate_parts.sh INPUT OUTPUT LINES RUN [option ...]
set -euo pipefail
input=$1 output=$2 lines=$3
shift 3
[ ! -e "$output" ] || exit 0
parts=$output.parts
mkdir -p "$parts/input" "$parts/output"
split -l "$lines" "$input" "$parts/input/"
for part in "$parts"/input/*; do
    echo "translating $part of $(ls "$parts/input" | tail -n 1)" >&2
    translated=$parts/output/$(basename "$part")
    [ -e "$translated" ] || seq2seq translate "$@" "$part" -o "$translated"
done
cat "$parts"/output/* >"$output.part"
mv "$output.part" "$output"
rm -r "$parts"
