"""The notebook of the documentation runs, and shows what its text says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from forked import served_command
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tour.ipynb"


def test_the_notebook_trains_aligns_and_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with served_command() as commands:  # for `!seq2seq`
        monkeypatch.setenv("PATH", os.pathsep.join([str(commands), os.environ["PATH"]]))
        NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [
        output.get("text")
        or output.get("data", {}).get("text/html")
        or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]
    text = "\n".join(shown)
    scores = [float(score) for score in re.findall(r"^update .* BLEU +([\d.]+)$", text, re.M)]
    assert len(scores) == 4 and scores[-1] > 90
    assert "e d c b a" in text
    [table] = [each for each in shown if each.startswith("<table>")]
    cells = [re.findall(r'title="(\d+)%"', row) for row in table.split("<tr>")[2:]]
    rows = [list(map(int, row)) for row in cells]
    half = len(rows) // 2
    assert all(sum(row) <= 105 for row in rows)  # the rest is that to the end of the source
    # The attention runs from the end of the source to its beginning.
    late = sum(sum(row[half:]) for row in rows[:half])
    early = sum(sum(row[half:]) for row in rows[-half:])
    assert late > early
    assert re.search(r"toy is better than narrow by [\d.]+ BLEU", text)
