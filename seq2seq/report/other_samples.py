"""What a language model writes and predicts, and where a classifier is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import shorten

import numpy as np
import torch

from seq2seq.data.packing import pack
from seq2seq.decoding.classification import TextClassifier
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.sampling import Sampling
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.model.directory import load_model
from seq2seq.model.saved import find_model
from seq2seq.model.transformer import LanguageModel
from seq2seq.report.charts import Charts, Rows, bar_chart, heat_map
from seq2seq.report.page import paragraphs, table

SAMPLES = 3
SAMPLE_TOKENS = 400
WINDOWS = 200
"""Number of context windows of which the bits by position are the mean."""
GROUPS = 32
"""Number of bars of the bits by position."""
WRONG_TEXTS = 10
MOST_TEXTS = 5_000
SHOWN_CHARACTERS = 400


@torch.inference_mode()
def language_model_section(charts: Charts, run: Path, name: str, device: str) -> list[str]:
    """Return bits by position in the context, and samples."""
    loaded = load_model(find_model(run), device)
    data = split_of_run(loaded.config, run, "dev", loaded.tokenizer)
    tokens, model = data.tokens("dev"), loaded.model
    assert isinstance(model, LanguageModel)
    context = min(loaded.config.model.context, len(tokens) - 1)
    starts = np.linspace(0, len(tokens) - 1 - context, WINDOWS).astype(int)
    sums = torch.zeros(context, dtype=torch.float64)
    for start in starts.tolist():
        row = tokens[start : start + context + 1].astype(np.int64)
        hidden = model(pack([row[:-1].astype(np.int32)]).to(model.device))[:context]
        log_probs = model.output(hidden).float().log_softmax(dim=-1).cpu()
        sums -= log_probs.gather(1, torch.from_numpy(row[1:, None]))[:, 0]
    bits = (sums / len(starts) / math.log(2)).tolist()
    width = max(1, context // GROUPS)
    rows: Rows = [
        {"position": f"{i}", "bits": round(float(np.mean(bits[i : i + width])), 4)}
        for i in range(0, context, width)
    ]
    spec = bar_chart(rows, "position", "bits", "tokens before it in the context", "bits per token")
    title = f"Bits per token by position, {len(starts)} windows of the development set"
    body = [f"<h2>{escape(name)}: the development set</h2>", charts.add(f"{title} (bits)", spec)]
    generator = TextGenerator.load(run, device=device)
    parts = [""] * SAMPLES
    sampling = Sampling(temperature=0.8)
    for new in generator.generate(length=SAMPLE_TOKENS, sampling=sampling, seed=1, samples=SAMPLES):
        parts = [text + more for text, more in zip(parts, new, strict=True)]
    body += ["<h3>Samples</h3>", paragraphs(["Temperature 0.8, seed 1."], "note")]
    return [*body, *(f'<pre style="white-space: pre-wrap">{escape(text)}</pre>' for text in parts)]


def classifier_section(charts: Charts, run: Path, name: str, device: str) -> list[str]:
    """Return the confusion matrix, and the texts of which the model is most wrongly sure."""
    loaded = load_model(find_model(run), device)
    data = split_of_run(loaded.config, run, "dev", loaded.tokenizer)
    texts, labels = data.store("dev").texts(MOST_TEXTS)
    classifier = TextClassifier.load(run, device=device)
    found = classifier.classify(texts)
    names = loaded.tokenizer.target.decode([[i] for i in range(loaded.tokenizer.target.size)])
    counts = {label: dict.fromkeys(names, 0) for label in names}
    wrong: list[tuple[float, str, str, str]] = []
    for text, label, answer in zip(texts, labels, found, strict=True):
        if answer is None:
            continue
        predicted, prob = answer
        counts[label][predicted] += 1
        if predicted != label:
            wrong.append((prob, label, predicted, text))
    body = [f"<h2>{escape(name)}: the development set</h2>"]
    body.append(_confusion(charts, names, counts))
    rows = [["true", "predicted", "probability", "text"]]
    for prob, label, predicted, text in sorted(wrong, reverse=True)[:WRONG_TEXTS]:
        rows.append([label, predicted, f"{prob:.1%}", shorten(text, SHOWN_CHARACTERS)])
    total = sum(sum(row.values()) for row in counts.values())
    note = f"{len(wrong):,} of {total:,} texts are wrong; here those of the highest probability."
    return [*body, "<h3>Most wrong texts</h3>", paragraphs([note], "note"),
            table(rows, kind="text")]  # fmt: skip


def _confusion(charts: Charts, names: Sequence[str], counts: dict[str, dict[str, int]]) -> str:
    values = [[float(counts[row][column]) for column in names] for row in names]
    titles = {"x": "predicted", "y": "true label", "value": "texts"}
    spec = heat_map(names, names, values, titles)
    return f'<div class="scroll">{charts.add("Confusion matrix (texts)", spec)}</div>'
