"""The robustness table: changes of a test set and their scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from seq2seq.cli import main
from seq2seq.evaluation.evaluate import changed_pairs, robustness

PAIRS = [
    ("See the house.", "Sieh das Haus."),
    ("A “big” dog!", "Ein großer Hund!"),
    ("Go on.", "Los."),
]
NAMES = ["clean", "quotes", "lower", "spaces", "typos", "noise", "join"]


def test_every_change_but_copies_is_in_the_table() -> None:
    changed = dict(changed_pairs(PAIRS))
    assert list(changed) == NAMES
    assert changed["clean"] == PAIRS
    assert changed["lower"][1] == ("a “big” dog!", "ein großer hund!")
    assert changed["join"][0] == ("See the house. A “big” dog!", "Sieh das Haus. Ein großer Hund!")
    assert changed["join"][1] == PAIRS[2]
    assert changed == dict(changed_pairs(PAIRS))  # the same for every model


def test_scores_are_those_of_the_changed_references() -> None:
    calls = iter(changed_pairs(PAIRS))

    def perfect_but_for_typos(sources: Sequence[str]) -> list[str]:
        name, pairs = next(calls)
        assert list(sources) == [source for source, _ in pairs]
        return ["x" if name == "typos" else target for _, target in pairs]

    table = robustness(perfect_but_for_typos, PAIRS, tokenize="13a")
    assert table["lower"]["chrf"] == pytest.approx(100)
    assert table["typos"]["chrf_lost"] == pytest.approx(100)
    assert table["clean"]["chrf_lost"] == 0


def test_the_command_prints_the_table(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run), "--robustness", "--json"])
    metrics = json.loads(capfd.readouterr().out)
    table = metrics["robustness"]
    assert list(table) == NAMES
    assert table["clean"]["chrf"] == pytest.approx(metrics["chrf"])
    main(["evaluate", str(run), "--robustness"])
    lines = capfd.readouterr().out.splitlines()
    assert lines[-len(NAMES) - 1].split() == ["change", "BLEU", "chrF2", "chrF2", "lost"]
    assert [line.split()[0] for line in lines[-len(NAMES) :]] == NAMES
