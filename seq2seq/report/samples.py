"""What a model does with its development set.

Of translation: scores, samples, attention; of a language model samples; of a classifier where it is
wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import shorten

from seq2seq.config import Config
from seq2seq.decoding.classification import TextClassifier
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.hypothesis import END, Hypothesis
from seq2seq.decoding.sampling import Sampling
from seq2seq.decoding.translator import Translation, Translator
from seq2seq.evaluation.breakdown import by_length
from seq2seq.evaluation.systems import System, TestSet
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.report.page import details, paragraphs, shaded_table, table, text_fields
from seq2seq.report.scores import group_rows

NUM_SAMPLES = 8
SCORED_SENTENCES = 1_000
"""Number of sentences of the development set from which the scores by length are."""
MOST_TOKENS = 40
"""Pictures of longer sentences would not be legible."""
NUM_PICTURES = 3
SAMPLES = 3
SAMPLE_TOKENS = 400
WRONG_TEXTS = 10
MOST_TEXTS = 5_000
SHOWN_CHARACTERS = 400


def samples(config: Config, run: Path, name: str, device: str) -> list[str]:
    """Return what the model of a run does."""
    if config.task == "translation":
        body = _translation(config, run, device)
    elif config.task == "language_model":
        body = _language_model(run, device)
    else:
        body = _classifier(config, run, device)
    return [f"<h2>{escape(name)}: the development set</h2>", *body]


def _translation(config: Config, run: Path, device: str) -> list[str]:
    """Return scores by length, and samples of a run's translations with their attention."""
    translator = Translator.load(run, device=device)
    data = split_of_run(config, run, "dev", translator.tokenizer)
    sources, references = data.store("dev").texts(SCORED_SENTENCES)
    system = System("", translator.translate(sources))
    groups = by_length([system], TestSet([references], tokenize=config.data.bleu_tokenizer))
    chosen = _spread(sources)
    texts = [sources[i] for i in chosen]
    width = min(5, translator.decoding.beam)
    found = translator.translations(texts, tokens=True, nbest=width)
    note = "The darker a token, the less probable it was; point at it for its probability."
    return [
        "<h3>Scores by length</h3>",
        table(group_rows(groups)),
        "<h3>Samples</h3>",
        paragraphs([note], "note"),
        *(_sample(sources[i], references[i], each) for i, each in zip(chosen, found, strict=True)),
        *_attention(translator, texts, found),
    ]


def _spread(sources: Sequence[str]) -> list[int]:
    """Return sentences of all lengths, evenly spread."""
    nonblank = [i for i, text in enumerate(sources) if text.strip()]
    order = sorted(nonblank, key=lambda i: len(sources[i]))
    count = min(NUM_SAMPLES, len(order))
    return [order[(2 * k + 1) * len(order) // (2 * count)] for k in range(count)]


def _sample(source: str, reference: str, found: Translation) -> str:
    best = found.nbest[0] if found.nbest else None
    rows = [("source", escape(source)), ("reference", escape(reference))]
    rows.append(("translation", _tokens(best) if best else escape(found.error or "")))
    others = [["score", "log-probability", "translation"]]
    others += [[f"{each.score:.3f}", f"{each.log_prob:.2f}", each.text] for each in found.nbest]
    return text_fields(rows) + details(f"{len(found.nbest)} best", table(others, kind="text"))


def _tokens(found: Hypothesis) -> str:
    """Return the tokens of a translation, darker where they were less probable."""
    spans = []
    for piece, log_prob in zip([*found.pieces, END], found.log_probs, strict=True):
        prob = math.exp(log_prob)
        shade = f"background: rgba(224, 128, 47, {0.75 * (1 - prob):.2f})"
        text = escape(piece.replace("▁", " ")) or "&nbsp;"
        spans.append(f'<span style="{shade}" title="{prob:.1%}">{text}</span>')
    return f'<span style="white-space: pre-wrap">{"".join(spans)}</span>'


def _attention(
    translator: Translator, texts: Sequence[str], found: Sequence[Translation]
) -> list[str]:
    """Return pictures of the cross-attention from which alignments are made."""
    source, _ = translator.tokenizer.sentence_pieces
    best = [each.nbest[0].pieces if each.nbest else [] for each in found]
    pairs = [
        (pieces, own)
        for pieces, own in zip(source.encode_pieces(texts), best, strict=True)
        if 2 < len(pieces) <= MOST_TOKENS and 0 < len(own) <= MOST_TOKENS
    ][-NUM_PICTURES:]
    if not pairs:
        return []
    engine = translator.engines.choose(translator.decoding)
    attention = engine.attention(pairs, translator.decoding)
    note = (
        "Of each target token, in a row, the shares of the source tokens: the mean of the heads of "
        "the last layer but one; point at a cell for its share."
    )
    pictures = [
        shaded_table(target, source_pieces, weights.tolist())
        for (source_pieces, target), weights in zip(pairs, attention, strict=True)
    ]
    return ["<h3>Attention</h3>", paragraphs([note], "note"), *pictures]


def _language_model(run: Path, device: str) -> list[str]:
    """Return samples of a language model."""
    generator = TextGenerator.load(run, device=device)
    texts = [""] * SAMPLES
    sampling = Sampling(temperature=0.8)
    for new in generator.generate(length=SAMPLE_TOKENS, sampling=sampling, seed=1, samples=SAMPLES):
        texts = [text + more for text, more in zip(texts, new, strict=True)]
    shown = [f'<pre style="white-space: pre-wrap">{escape(text)}</pre>' for text in texts]
    return ["<h3>Samples</h3>", paragraphs(["Temperature 0.8, seed 1."], "note"), *shown]


def _classifier(config: Config, run: Path, device: str) -> list[str]:
    """Return the confusion matrix, and the texts of which the model is most wrongly sure."""
    classifier = TextClassifier.load(run, device=device)
    data = split_of_run(config, run, "dev", classifier.tokenizer)
    texts, labels = data.store("dev").texts(MOST_TEXTS)
    found = classifier.classify(texts)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for text, label, answer in zip(texts, labels, found, strict=True):
        if answer:
            predicted, prob = answer
            counts[label, predicted] += 1
            if predicted != label:
                wrong.append((prob, label, predicted, text))
    target = classifier.tokenizer.target
    names = target.pieces(range(target.size))
    confusion = [["true \\ predicted", *names]]
    confusion += [[label, *(f"{counts[label, name]:,}" for name in names)] for label in names]
    rows = [["true", "predicted", "probability", "text"]]
    for prob, label, predicted, text in sorted(wrong, reverse=True)[:WRONG_TEXTS]:
        rows.append([label, predicted, f"{prob:.1%}", shorten(text, SHOWN_CHARACTERS)])
    share = f"{len(wrong):,} of {counts.total():,} texts are wrong"
    return [
        "<h3>Confusion matrix</h3>",
        table(confusion),
        "<h3>Most wrong texts</h3>",
        paragraphs([f"{share}; here those of the highest probability."], "note"),
        table(rows, kind="text"),
    ]
