"""Measure word alignments: identical words, the two directions, another aligner.

Usage: python scripts/bench_alignment.py RUN SOURCE TARGET --reverse RUN
       [--links FORWARD REVERSE] [--json]

SOURCE and TARGET are aligned files that were not trained on; the model of --reverse translates the
other way. Their words are linked by the heads of each model, and by all heads of the last layer but
one (`default`). Identical words (numbers and names, once on each side) have one right link. The
agreement of the two directions is the F1 score of their links. --links: another aligner's links in
Pharaoh format, source to target and target to source; the intersection of the two is what the
links' recall and the F1 score of the two models' intersection are measured against.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from seq2seq import Translator
from seq2seq.data.lines import read_file
from seq2seq.decoding.alignment import align, identical_words, words_of
from seq2seq.decoding.engine import SearchEngine, default_heads
from seq2seq.machine.threads import choose_threads
from seq2seq.model.cache import AttentionHeads

Links = list[set[tuple[int, int]]]


def links_of(
    translator: Translator, heads: AttentionHeads, sources: Sequence[str], targets: Sequence[str]
) -> Links:
    """Return the links of the words of each pair."""
    sides = [translator.tokenizer.source, translator.tokenizer.target]
    rows = [side.encode(texts) for side, texts in zip(sides, (sources, targets), strict=True)]
    pairs = list(zip(*rows, strict=True))
    pieces = [side.token_bytes() for side in sides]
    links = []
    scored = translator.engine.score(pairs, translator.decoding, heads)
    for pair, each in zip(pairs, scored, strict=True):
        assert each.attention is not None
        words = [words_of(ids, own) for ids, own in zip(pair, pieces, strict=True)]
        links.append(set(align(each.attention, *words)))
    return links


def f1(one: Links, other: Links) -> float:
    """Return the F1 score of two sets of links."""
    common = sum(len(a & b) for a, b in zip(one, other, strict=True))
    return 2 * common / (sum(map(len, one)) + sum(map(len, other)))


def recall(found: Links, right: Links) -> float:
    """Return the share of the right links that were found."""
    common = sum(len(a & b) for a, b in zip(found, right, strict=True))
    return common / sum(map(len, right))


def both(one: Links, other: Links) -> Links:
    """Return the intersections."""
    return [a & b for a, b in zip(one, other, strict=True)]


def flipped(links: Links) -> Links:
    """Return links from target to source as links from source to target."""
    return [{(j, i) for i, j in own} for own in links]


def read_links(path: Path) -> Links:
    """Read links in Pharaoh format."""
    return [
        {(int(i), int(j)) for i, _, j in (link.partition("-") for link in line.split())}
        for line in read_file(path)
    ]


def main() -> None:
    """Print the measurements of the chosen and of the default heads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--reverse", type=Path, required=True)
    parser.add_argument("--links", type=Path, nargs=2, metavar=("FORWARD", "REVERSE"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    choose_threads()
    lines = list(zip(read_file(options.source), read_file(options.target), strict=True))
    kept = [i for i, pair in enumerate(lines) if all(side.strip() for side in pair)]
    sources, targets = [lines[i][0] for i in kept], [lines[i][1] for i in kept]
    right: Links = [set(identical_words(*pair)) for pair in zip(sources, targets, strict=True)]
    found: dict[str, dict[str, float]] = {}
    models = [Translator.load(run) for run in (options.run, options.reverse)]
    for name in ("default", "chosen"):
        directions = []
        for translator, texts in zip(models, ((sources, targets), (targets, sources)), strict=True):
            engine = translator.engine
            assert isinstance(engine, SearchEngine)
            heads = engine.heads if name == "chosen" else default_heads(engine.ensemble.models[0])
            directions.append(links_of(translator, heads, *texts))
        forward, reverse = directions[0], flipped(directions[1])
        found[name] = {
            "identical_words": sum(map(len, right)),
            "identical_forward": recall(forward, right),
            "identical_reverse": recall(reverse, right),
            "directions_f1": f1(forward, reverse),
        }
        if options.links:
            others = [read_links(path) for path in options.links]
            one, other = ([links[i] for i in kept] for links in others)
            sure = both(one, other)
            found[name] |= {
                "recall_forward": recall(forward, sure),
                "recall_reverse": recall(reverse, sure),
                "intersection_f1": f1(both(forward, reverse), sure),
                "directions_f1_of_the_other_aligner": f1(one, other),
            }
    if options.json:
        print(json.dumps(found))
        return
    for key in found["chosen"]:
        print(f"{key:36} default {found['default'][key]:.3f}  chosen {found['chosen'][key]:.3f}")


if __name__ == "__main__":
    main()
