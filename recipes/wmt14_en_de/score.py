"""Score translations of newstest2014 with sacreBLEU and with the script of the paper.

Usage: python recipes/wmt14_en_de/score.py HYP REF [--source FILE --filtered EN DE] [--json]

HYP and REF are the 3,003 lines of newstest2014 as plain text (sacreBLEU's wmt14/full). --source are
its English lines, EN and DE those of the official set of 2,737 (sacreBLEU's wmt14): with them, that
is scored too. docs/wmt14.md says why the numbers differ. The paper's way needs sacremoses.
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


def as_in_the_paper(lines: Sequence[str]) -> list[str]:
    """Tokenise German as Moses does, and split compounds at their hyphens.

    Closing quotes and other signs beyond ASCII are replaced first by those within; the opening
    quote of German is not on Moses' list. tensor2tensor's get_ende_bleu.sh does so to translations
    alone, and takes its reference as it was tokenised.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        raise UserError("the paper's way needs the package: pip install sacremoses") from None

    normalizer, tokenizer = MosesPunctNormalizer("de"), MosesTokenizer("de")
    plain = (normalizer.replace_unicode_punct(line) for line in lines)
    return [split_compounds(tokenizer.tokenize(line, return_str=True)) for line in plain]


def split_compounds(line: str) -> str:
    """Split `rich-text` into `rich ##AT##-##AT## text`, where a hyphen has no space next to it."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def chosen_lines(
    source: Sequence[str], reference: Sequence[str], filtered: Sequence[tuple[str, str]]
) -> list[int]:
    """Return which lines of a test set make its filtered version, which keeps their order.

    filtered: its lines with their references, which tell lines apart that come again.
    """
    places, start = [], 0
    lines = [" ".join(line.split()) for line in source]
    for english, translated in filtered:
        wanted = " ".join(english.split())
        equal = [i for i in range(start, len(lines)) if lines[i] == wanted]
        if not equal:
            raise UserError(f"--filtered has a line that --source has not: {english!r}")
        places.append(next((i for i in equal if reference[i] == translated), equal[0]))
        start = places[-1] + 1
    return places


def test_set(lines: int, whole: Sequence[str]) -> str:
    """Name a test set by its number of lines, and by how the whole begins that it is a part of."""
    known = TEST_SETS.get(lines) if whole[0].strip() == FIRST_LINE else None
    return known or ("another test set" if lines == len(whole) else "a part of it")


def scores(
    hypotheses: Sequence[str], references: Sequence[str], chosen: Sequence[int] | None
) -> dict[str, dict[str, object]]:
    """Return each way of scoring by its name: BLEU, signature and number of lines."""
    paper = "the paper's (Moses, compounds split)"
    whole = test_set(len(references), references)
    ways = {f"sacreBLEU, {whole}": (hypotheses, references, BLEU())}
    if chosen is not None:
        few, few_references = ([lines[i] for i in chosen] for lines in (hypotheses, references))
        ways[f"sacreBLEU, {test_set(len(chosen), references)}"] = (few, few_references, BLEU())
    tokens, reference_tokens = as_in_the_paper(hypotheses), as_in_the_paper(references)
    ways[paper] = (tokens, reference_tokens, BLEU(tokenize="none", force=True))
    found = {}
    for name, (ours, theirs, bleu) in ways.items():
        score = bleu.corpus_score(ours, [theirs]).score
        signature = str(bleu.get_signature())
        found[name] = {"bleu": score, "lines": len(ours), "signature": signature}
    return found


def read_aligned(one: Path, other: Path) -> tuple[list[str], list[str]]:
    """Return the lines of two files; raises UserError unless they are as many, and some."""
    found = read_file(one), read_file(other)
    if len(found[0]) != len(found[1]):
        raise UserError(f"{one} has {len(found[0])} lines, {other} has {len(found[1])}")
    if not found[0]:
        raise UserError(f"{one} is empty")
    return found


def main() -> None:
    """Parse the arguments, and print a line for each way, or one JSON object."""
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
                chosen = chosen_lines(source, references, list(zip(*filtered, strict=True)))
            except UserError as error:  # the other scores need not wait for it
                print(f"warning: no score of the filtered set: {error}", file=sys.stderr)
        found = scores(hypotheses, references, chosen)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    if options.json:
        print(json.dumps(found))
        return
    for name, score in found.items():
        print(f"{score['bleu']:6.2f}  {name}, {score['lines']:,} lines, {score['signature']}")


if __name__ == "__main__":
    main()
