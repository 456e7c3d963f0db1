"""Report section on the outputs of a model, mostly for its development set.

Translation: samples. Language model: samples. Classifier: errors.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import shorten

from seq2seq.config import Config
from seq2seq.decoding.classification import TextClassifier
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.rules import Sampling
from seq2seq.decoding.translation import END, Candidate
from seq2seq.decoding.translator import Translation, Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.systems import split_of_run, tag_of
from seq2seq.report.page import details, paragraph, table

NUM_SAMPLES = 8
TEXTS = 3
SAMPLE_TOKENS = 400
NUM_ERRORS = 10
MAX_CLASSIFIED = 5_000
MAX_CHARACTERS = 400

logger = logging.getLogger(__name__)


def samples(config: Config, run: Path, name: str, device: str) -> list[str]:
    """Return samples of the best model of a run, as HTML, or the reason why there are none."""
    sections = {"translation": _translation, "language_model": _language_model}
    try:
        body = sections.get(config.task, _classifier)(config, run, device)
    except UserError as error:
        logger.warning("no samples of %s: %s", run, error)
        body = [paragraph(f"No samples: {error}")]
    return [f"<h2>{escape(name)}: the development set</h2>", *body]


def _translation(config: Config, run: Path, device: str) -> list[str]:
    """Return sample translations."""
    translator = Translator.load(run, device=device, tag=tag_of(config, "dev"))
    data = split_of_run(config, run, "dev", translator.tokenizer)
    sources, references = data.store("dev").texts(tag=translator.tag)
    chosen = _sample_indices(sources)
    texts = [sources[i] for i in chosen]
    width = min(5, translator.decoding.beam)
    results = translator.translations(texts, tokens=True, nbest=width)
    return [
        "<h3>Samples</h3>",
        paragraph("Dark tokens have a low probability. Point at a token for its probability."),
        *(_sample(sources[i], references[i], r) for i, r in zip(chosen, results, strict=True)),
    ]


def _sample_indices(sources: Sequence[str]) -> list[int]:
    """Return the indices of `NUM_SAMPLES` sentences, evenly spread over all lengths."""
    nonblank = [i for i, text in enumerate(sources) if text.strip()]
    order = sorted(nonblank, key=lambda i: len(sources[i]))
    count = min(NUM_SAMPLES, len(order))
    return [order[(2 * k + 1) * len(order) // (2 * count)] for k in range(count)]


def _sample(source: str, reference: str, result: Translation) -> str:
    """Return a table of one translation, and its n-best list."""
    best = result.nbest[0] if result.nbest else None
    found = _tokens(best) if best else escape(result.error or "")
    cells = {"source": escape(source), "reference": escape(reference), "translation": found}
    rows = "".join(f"<tr><th>{name}</th><td>{cell}</td></tr>" for name, cell in cells.items())
    nbest = [["score", "log-probability", "translation"]]
    nbest += [[f"{h.score:.3f}", f"{h.log_prob:.2f}", h.text] for h in result.nbest]
    title = f"{len(result.nbest)}-best list"
    return f'<table class="text">{rows}</table>' + details(title, table(nbest, kind="text"))


def _tokens(hypothesis: Candidate) -> str:
    """Return the tokens of a translation, shaded by their probability."""
    spans = []
    for piece, log_prob in zip([*hypothesis.pieces, END], hypothesis.log_probs, strict=True):
        prob = math.exp(log_prob)
        shade = f"background: rgba(224, 128, 47, {0.75 * (1 - prob):.2f})"
        text = escape(piece.replace("▁", " ")) or "&nbsp;"
        spans.append(f'<span style="{shade}" title="{prob:.1%}">{text}</span>')
    return f'<span style="white-space: pre-wrap">{"".join(spans)}</span>'


def _language_model(config: Config, run: Path, device: str) -> list[str]:
    """Return samples of a language model."""
    generator = TextGenerator.load(run, device=device)
    texts = [""] * TEXTS
    sampling = Sampling(temperature=0.8)
    for new in generator.generate(length=SAMPLE_TOKENS, sampling=sampling, seed=1, samples=TEXTS):
        texts = [text + part for text, part in zip(texts, new, strict=True)]
    blocks = [f'<pre style="white-space: pre-wrap">{escape(text)}</pre>' for text in texts]
    return ["<h3>Samples</h3>", paragraph("Temperature 0.8, seed 1."), *blocks]


def _classifier(config: Config, run: Path, device: str) -> list[str]:
    """Return the confusion matrix and the most confident errors."""
    classifier = TextClassifier.load(run, device=device)
    data = split_of_run(config, run, "dev", classifier.tokenizer)
    texts, labels = data.store("dev").texts(MAX_CLASSIFIED)
    predictions = classifier.classify(texts)
    counts: Counter[tuple[str, str]] = Counter()
    errors = []
    for text, label, prediction in zip(texts, labels, predictions, strict=True):
        if prediction:
            predicted, prob = prediction
            counts[label, predicted] += 1
            if predicted != label:
                errors.append((prob, label, predicted, text))
    target = classifier.tokenizer.target
    names = target.pieces(range(target.size))
    confusion = [["true \\ predicted", *names]]
    confusion += [[label, *(f"{counts[label, name]:,}" for name in names)] for label in names]
    rows = [["true", "predicted", "probability", "text"]]
    for prob, label, predicted, text in sorted(errors, reverse=True)[:NUM_ERRORS]:
        rows.append([label, predicted, f"{prob:.1%}", shorten(text, MAX_CHARACTERS)])
    return [
        "<h3>Confusion matrix</h3>",
        table(confusion),
        "<h3>Most confident errors</h3>",
        paragraph(f"Errors: {len(errors):,} of {counts.total():,} texts."),
        table(rows, kind="text"),
    ]
