"""Score translations of newstest2014 with sacreBLEU and with the script of the paper.

Usage: python recipes/wmt14_en_de/score.py HYP REF [--source FILE --filtered EN DE] [--json]

HYP and REF have the 3,003 lines of newstest2014 as plain text (sacreBLEU's wmt14/full). To also
score the official set of 2,737 lines (sacreBLEU's wmt14), give its lines as EN and DE, and all
English lines as --source. docs/wmt14.md explains the differences. Needs sacremoses.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics import BLEU

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError

COMPOUND = re.compile(r"(\S)-(\S)")
TEST_SETS = {3003: "wmt14/full", 2737: "wmt14"}
"""Number of lines of newstest2014, by sacreBLEU's name."""
FIRST_LINE = "Gutach: Noch mehr Sicherheit für Fußgänger"
"""First line of newstest2014; other test sets may have the same number of lines."""


def paper_tokens(lines: Sequence[str]) -> list[str]:
    """Tokenise German with Moses, and split compounds at hyphens.

    Unicode punctuation, such as closing quotes, is first replaced by ASCII; German opening quotes
    are not on Moses' list. tensor2tensor's get_ende_bleu.sh does this to translations only: its
    reference is already tokenised.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UserError("the paper's scoring needs sacremoses: pip install sacremoses") from None

    normalizer, tokenizer = MosesPunctNormalizer("de"), MosesTokenizer("de")
    plain = (normalizer.replace_unicode_punct(line) for line in lines)
    return [split_compounds(tokenizer.tokenize(line, return_str=True)) for line in plain]


def split_compounds(line: str) -> str:
    """Split compounds: `rich-text` becomes `rich ##AT##-##AT## text`."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def select_lines(
    source: Sequence[str], reference: Sequence[str], filtered: Sequence[tuple[str, str]]
) -> list[int]:
    """Return the indices of the lines of a test set that are in its filtered version.

    filtered: lines with references, in the same order. References distinguish repeated lines.
    """
    indices, start = [], 0
    lines = [" ".join(line.split()) for line in source]
    for english, translated in filtered:
        wanted = " ".join(english.split())
        equal = [i for i in range(start, len(lines)) if lines[i] == wanted]
        if not equal:
            raise UserError(f"--filtered has a line that is not in --source: {english!r}")
        indices.append(next((i for i in equal if reference[i] == translated), equal[0]))
        start = indices[-1] + 1
    return indices


def test_set(lines: int, whole: Sequence[str]) -> str:
    """Return the name of a test set, from its number of lines and the whole set's first line."""
    known = TEST_SETS.get(lines) if whole[0].strip() == FIRST_LINE else None
    return known or ("another test set" if lines == len(whole) else "a part of it")


def scores(
    hypotheses: Sequence[str], references: Sequence[str], chosen: Sequence[int] | None
) -> dict[str, dict[str, object]]:
    """Return BLEU, signature and number of lines, by the name of the scoring method."""
    paper = "the paper's (Moses, compounds split)"
    whole = test_set(len(references), references)
    methods = {f"sacreBLEU, {whole}": (hypotheses, references, BLEU())}
    if chosen is not None:
        few, few_references = ([lines[i] for i in chosen] for lines in (hypotheses, references))
        methods[f"sacreBLEU, {test_set(len(chosen), references)}"] = (few, few_references, BLEU())
    tokens, reference_tokens = paper_tokens(hypotheses), paper_tokens(references)
    methods[paper] = (tokens, reference_tokens, BLEU(tokenize="none", force=True))
    results = {}
    for name, (lines, line_references, bleu) in methods.items():
        score = bleu.corpus_score(lines, [line_references]).score
        signature = str(bleu.get_signature())
        results[name] = {"bleu": score, "lines": len(lines), "signature": signature}
    return results


def read_aligned(first: Path, second: Path) -> tuple[list[str], list[str]]:
    """Return the lines of two files. Raises UserError if they are empty or differ in number."""
    lines = read_file(first), read_file(second)
    if len(lines[0]) != len(lines[1]):
        raise UserError(f"{first} has {len(lines[0])} lines, {second} has {len(lines[1])}")
    if not lines[0]:
        raise UserError(f"{first} is empty")
    return lines


def main() -> None:
    """Parse the arguments; print a line per scoring method, or a JSON object."""
    parser = argparse.ArgumentParser(description="score translations of newstest2014")
    parser.add_argument("hypothesis", type=Path, metavar="HYP")
    parser.add_argument("reference", type=Path, metavar="REF")
    parser.add_argument("--source", type=Path, metavar="FILE")
    parser.add_argument("--filtered", type=Path, nargs=2, metavar=("EN", "DE"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if bool(options.source) != bool(options.filtered):
        parser.error("--source and --filtered go together")
    try:
        hypotheses, references = read_aligned(options.hypothesis, options.reference)
        chosen = None
        if options.source:
            source, _ = read_aligned(options.source, options.reference)
            filtered = read_aligned(*options.filtered)
            try:
                chosen = select_lines(source, references, list(zip(*filtered, strict=True)))
            except UserError as error:  # the other scores do not need it
                print(f"warning: no score of the filtered set: {error}", file=sys.stderr)
        results = scores(hypotheses, references, chosen)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    if options.json:
        print(json.dumps(results))
        return
    for name, score in results.items():
        print(f"{score['bleu']:6.2f}  {name}, {score['lines']:,} lines, {score['signature']}")


if __name__ == "__main__":
    main()
