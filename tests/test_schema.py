"""Every key of a recipe is set by some test."""

from __future__ import annotations

import re
from pathlib import Path

from seq2seq.config import TASKS, leaves, to_tree


def test_every_key_has_a_test() -> None:
    tests = [path for path in Path(__file__).parent.glob("*.py") if path != Path(__file__)]
    text = "".join(path.read_text(encoding="utf-8") for path in tests)
    keys = {key for task in TASKS.values() for key in leaves(to_tree(task.defaults))}
    names = {key.rpartition(".")[2] for key in keys}
    assert len(names) > 60
    assert [name for name in sorted(names) if not re.search(rf'\b{name}"?[=:]', text)] == []
