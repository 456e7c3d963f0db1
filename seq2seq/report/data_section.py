"""Report section on the data of a run: sizes, lengths, dropped pairs, vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from seq2seq.data.prepared import PreparedData
from seq2seq.data.vocabulary import Labels
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import RULES
from seq2seq.preparation.folder import find_prepared
from seq2seq.preparation.prepare import DROPPED_FILE
from seq2seq.report.page import details, paragraphs, table
from seq2seq.report.runs import RunRecord
from seq2seq.training.records import current_path

LONGEST = 120
"""Maximum number of characters shown of a dropped sentence."""


def data_section(record: RunRecord, *, quick: bool) -> list[str]:
    """Return HTML about the data of a run; quick: without reading the prepared data."""
    manifest = record.starts[-1]["data"] if record.starts else {}
    splits: dict[str, Any] = manifest.get("splits", {})
    if not splits:
        return []
    rows = [["split", "pairs or tokens"]]
    for name, facts in splits.items():
        rows.append([name, f"{facts.get('pairs', facts.get('tokens', 0)):,}"])
    inputs = [["corpus", "size", "SHA-256"]]
    for source in manifest.get("inputs", []):
        size = f"{source['bytes']:,} bytes" if "bytes" in source else ""
        name = source.get("file") or source.get("dataset", "?")
        inputs.append([name, size, source["sha256"][:16]])
    body = ["<h2>Data</h2>", table(rows), table(inputs, kind="text")]
    folder = None
    if record.config and "fingerprint" in manifest:
        folder = find_prepared(
            Path(current_path(record.config.data.store, record.path)), manifest["fingerprint"]
        )
    body += _cleaning(splits.get("train", {}), folder)
    if folder is None:
        body.append(paragraphs(["The prepared data are gone: no lengths and no vocabulary."]))
    elif not quick:
        try:
            data = PreparedData.load(folder)
            if "tokens" in data.facts("train"):  # language model
                ids, counts = np.unique(data.tokens("train"), return_counts=True)
                body += _vocabulary(data, dict(zip(ids.tolist(), counts.tolist(), strict=True)))
            else:
                body += _lengths(data)
                body += _vocabulary(data, data.store("train").target_counts())
        except (UserError, OSError) as error:  # the rest of the report does not need them
            body.append(paragraphs([f"The prepared data cannot be read: {error}"]))
    return body


def _cleaning(train: dict[str, Any], folder: Path | None) -> list[str]:
    """Return a table of the pairs dropped by each cleaning rule, with examples."""
    if "read" not in train:
        return []
    rows = [["", "pairs", ""], ["read", f"{train['read']:,}", ""]]
    for rule, count in (train.get("dropped") or {}).items():
        rows.append([f"dropped: {rule}", f"{count:,}", RULES.get(rule, "")])
    rows.append(["kept", f"{train.get('pairs', 0):,}", ""])
    body = ["<h3>Cleaning</h3>", table(rows)]
    path = folder / DROPPED_FILE if folder else None
    examples = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    for rule, pairs in examples.items():
        rows = [["source", "target"]]
        for pair in pairs:
            rows.append([shorten(text, LONGEST, placeholder=" ...") or "(blank)" for text in pair])
        title = f"Examples of {rule}: {RULES.get(rule, '')}"
        body.append(details(title, table(rows, kind="text")))
    return body


def _lengths(data: PreparedData) -> list[str]:
    """Return a table of sentence lengths in the training set, in tokens."""
    store = data.store("train")
    sides = {"source": store.source_lens, "target": store.target_lens}
    if isinstance(data.tokenizer.target, Labels):
        sides = {"text": store.source_lens}
    rows = [["tokens, including end of sentence", "mean", "median", "90 %", "99 %", "longest"]]
    for side, lens in sides.items():
        quantiles = np.quantile(lens, (0.5, 0.9, 0.99, 1)).astype(int)
        rows.append([side, f"{lens.mean():.1f}", *(f"{length:,}" for length in quantiles)])
    return ["<h3>Lengths of the training sentences</h3>", table(rows)]


def _vocabulary(data: PreparedData, counts: Mapping[int, int]) -> list[str]:
    """Return the size of the target vocabulary and its most frequent pieces."""
    vocabulary = data.tokenizer.target
    total = sum(counts.values())
    pieces = vocabulary.pieces(range(vocabulary.size))
    ordered = sorted(counts, key=lambda i: -counts[i])
    frequent = ", ".join(f"{pieces[i]!r} {counts[i] / total:.1%}" for i in ordered[:15])
    unused = vocabulary.size - len(counts)
    rare = sum(count < 10 for count in counts.values())
    facts = [
        f"The target vocabulary has {vocabulary.size:,} entries. {unused:,} do not occur in the "
        f"training data, {rare:,} occur fewer than ten times.",
        f"Most frequent: {frequent}.",
    ]
    return ["<h3>Vocabulary</h3>", paragraphs(facts)]
