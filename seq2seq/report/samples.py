"""What a model does with its development set.

Of translation: scores, samples, attention, a search; of a language model bits by position and
samples; of a classifier where it is wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from textwrap import shorten

import numpy as np
import torch

from seq2seq.config import Config
from seq2seq.data.packing import pack
from seq2seq.decoding.classification import TextClassifier
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.hypothesis import END, Hypothesis, LengthPenalty
from seq2seq.decoding.sampling import Sampling
from seq2seq.decoding.search import Finished, Live, beam_search
from seq2seq.decoding.segments import Segment
from seq2seq.decoding.translator import Translation, Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.breakdown import by_length
from seq2seq.evaluation.metrics import NAMES
from seq2seq.evaluation.systems import Run, System, TestSet
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.model.directory import load_model
from seq2seq.model.saved import find_model
from seq2seq.model.transformer import LanguageModel
from seq2seq.report.page import (
    Charts,
    Rows,
    bar_chart,
    details,
    heat_map,
    paragraphs,
    table,
    text_fields,
    tree,
)

Tokens = tuple[int, ...]
"""Ids of a hypothesis; -1 for its end."""
NUM_SAMPLES = 8
SCORED_SENTENCES = 1_000
"""Of so many sentences of the development set the scores by length are."""
MOST_TOKENS = 40
"""Pictures of longer sentences would not be legible."""
TREE_TOKENS = 8
"""Length of the source whose search is shown, if there is one."""
SAMPLES = 3
SAMPLE_TOKENS = 400
WINDOWS = 200
"""Number of context windows of which the bits by position are the mean."""
GROUPS = 32
"""Number of bars of the bits by position."""
WRONG_TEXTS = 10
MOST_TEXTS = 5_000
SHOWN_CHARACTERS = 400


def require_sentence(runs: Sequence[Path], sentence: str) -> None:
    """Raise UserError for a source whose search cannot be shown."""
    for run in map(Run, runs):
        [ids] = run.tokenizer.source.encode([sentence])
        if not ids or len(ids) > MOST_TOKENS:
            raise UserError(
                f"--sentence has {len(ids)} tokens: a search of 1 to {MOST_TOKENS} can be shown"
            )


def samples(
    charts: Charts, config: Config, run: Path, name: str, device: str, sentence: str | None
) -> list[str]:
    """Return what the model of a run does; sentence: a source whose search is shown."""
    if config.task == "translation":
        return _translation_section(charts, run, name, device, sentence)
    if config.task == "language_model":
        return _language_model_section(charts, run, name, device)
    if config.task == "classification":
        return _classifier_section(charts, run, name, device)
    return []


def _translation_section(
    charts: Charts, run: Path, name: str, device: str, sentence: str | None
) -> list[str]:
    """Return samples of a run's translations; sentence: the source whose search is shown."""
    opened = Run(run)
    sources, references = opened.prepared("dev").store("dev").texts(SCORED_SENTENCES)
    translator = Translator.load(run, device=device)
    lines = translator.translate(sources)
    test_set = TestSet([references], tokenize=opened.config.data.bleu_tokenizer)
    body = [f"<h2>{escape(name)}: the development set</h2>", *_scores(charts, lines, test_set)]
    chosen = _spread(sources)
    texts = [sources[i] for i in chosen]
    width = min(5, translator.decoding.beam)
    found = translator.translations(texts, tokens=True, nbest=width)
    body.append("<h3>Samples</h3>")
    note = "The darker a token, the less probable it was; point at it for its probability."
    body.append(paragraphs([note], "note"))
    for i, each in zip(chosen, found, strict=True):
        body.append(_sample(sources[i], references[i], each))
    body += _attention(charts, translator, texts, found)
    body += _search(charts, translator, sentence or _short_one(translator, sources))
    return body


def _scores(charts: Charts, lines: Sequence[str], test_set: TestSet) -> list[str]:
    x, rows = "words of the reference", []
    for group in by_length([System("", lines)], test_set):
        for key, score in group[""].items():
            values = {"score": round(score, 2), "metric": NAMES[key]}
            rows.append({x: group["group"], **values, "sentences": group["lines"]})
    spec = bar_chart(rows, x, "score", group="metric")
    return [charts.add(f"Scores by length (0 to 100), {len(lines):,} sentences", spec)]


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
    charts: Charts, translator: Translator, texts: Sequence[str], found: Sequence[Translation]
) -> list[str]:
    """Return pictures of the cross-attention from which alignments are made."""
    source, _ = translator.tokenizer.sentence_pieces
    best = [each.nbest[0].pieces if each.nbest else [] for each in found]
    pairs = [
        (pieces, own)
        for pieces, own in zip(source.encode_pieces(texts), best, strict=True)
        if 2 < len(pieces) <= MOST_TOKENS and 0 < len(own) <= MOST_TOKENS
    ][-3:]
    if not pairs:
        return []
    engine = translator.engines.choose(translator.decoding)
    body = []
    for pair, weights in zip(pairs, engine.attention(pairs, translator.decoding), strict=True):
        titles = "source token", "target token", "attention"
        spec = heat_map(*pair, weights.tolist(), titles)
        figure = charts.add("Cross-attention (share of each target token)", spec)
        body.append(f'<div class="scroll">{figure}</div>')
    note = "The mean of the heads of the last layer but one; point at a cell for its share."
    return ["<h3>Attention</h3>", paragraphs([note], "note"), *body]


def _short_one(translator: Translator, sources: Sequence[str]) -> str:
    """Return the source whose number of tokens is nearest to `TREE_TOKENS`."""
    lens = [len(ids) for ids in translator.tokenizer.source.encode(list(sources[:200]))]
    return sources[min(range(len(lens)), key=lambda i: abs(lens[i] - TREE_TOKENS))]


@torch.inference_mode()
def _search(charts: Charts, translator: Translator, text: str) -> list[str]:
    """Return the beam search of a source as a tree: all hypotheses that were alive at some time."""
    decoding = replace(translator.decoding, sample=False)
    engine, target = translator.engines.torch, translator.tokenizer.target
    source, _ = translator.tokenizer.sentence_pieces
    [pieces] = source.encode_pieces([text])
    alive: dict[Tokens, float] = {}

    def note_live(live: Live, values: torch.Tensor) -> torch.Tensor:
        rows = live.tokens[0].tolist(), live.log_probs[0].tolist()
        for tokens, log_prob in zip(*rows, strict=True):
            if log_prob > -math.inf:
                alive.setdefault(tuple(tokens[1:]), log_prob)
        return values

    [found] = beam_search(
        engine.decoder([pieces]),
        [engine.max_len(Segment(pieces), decoding)],
        beam=decoding.beam,
        bos_id=target.bos_id,
        eos_id=target.eos_id,
        penalty=LengthPenalty(decoding.length_penalty, decoding.penalty_form),
        patience=decoding.patience,
        rules=[note_live],
    )
    finished = {tuple(each.tokens): each for each in found}
    nodes = search_nodes(alive, finished, target.pieces(range(target.size)))
    note = (
        f"Source: {text!r}. A beam of {decoding.beam}, without rules; each node is a token, ends "
        "have the score; the best hypothesis is orange. Point at a node for log-probabilities."
    )
    figure = charts.add("Beam search of one sentence (nats)", tree(nodes), note)
    return ["<h3>A search</h3>", f'<div class="scroll">{figure}</div>']


def search_nodes(
    alive: Mapping[Tokens, float], finished: Mapping[Tokens, Finished], pieces: Sequence[str]
) -> Rows:
    """Return the nodes of a search: of hypotheses that were alive, and of the ends of others.

    alive: log-probabilities of token sequences, that of the empty one is 0. The first of `finished`
    is the best.
    """
    best, nodes = next(iter(finished), ()), []

    def add(tokens: Tokens, parent: Tokens | None, text: str, total: float, is_best: bool) -> None:
        before = alive[parent] if parent is not None else 0.0
        nodes.append(
            {
                "id": str(tokens),
                "parent": None if parent is None else str(parent),
                "text": text,
                "depth": len(tokens),
                "log_prob": round(total - before, 3),
                "total": round(total, 3),
                "best": is_best,
            }
        )

    for tokens in sorted(alive, key=lambda each: (len(each), each)):
        parent, text = (tokens[:-1], pieces[tokens[-1]]) if tokens else (None, "start")
        add(tokens, parent, text, alive[tokens], tokens == best[: len(tokens)])
    for tokens, each in finished.items():
        if tokens in alive:
            add((*tokens, -1), tokens, f"end {each.score:.2f}", each.log_prob, tokens == best)
    return nodes


@torch.inference_mode()
def _language_model_section(charts: Charts, run: Path, name: str, device: str) -> list[str]:
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
    x, y = "tokens before it in the context", "bits per token"
    rows: Rows = [
        {x: f"{i}", y: round(float(np.mean(bits[i : i + width])), 4)}
        for i in range(0, context, width)
    ]
    title = f"Bits per token by position, {len(starts)} windows of the development set (bits)"
    figure = charts.add(title, bar_chart(rows, x, y))
    body = [f"<h2>{escape(name)}: the development set</h2>", figure]
    generator = TextGenerator.load(run, device=device)
    parts = [""] * SAMPLES
    sampling = Sampling(temperature=0.8)
    for new in generator.generate(length=SAMPLE_TOKENS, sampling=sampling, seed=1, samples=SAMPLES):
        parts = [text + more for text, more in zip(parts, new, strict=True)]
    body += ["<h3>Samples</h3>", paragraphs(["Temperature 0.8, seed 1."], "note")]
    return [*body, *(f'<pre style="white-space: pre-wrap">{escape(text)}</pre>' for text in parts)]


def _classifier_section(charts: Charts, run: Path, name: str, device: str) -> list[str]:
    """Return the confusion matrix, and the texts of which the model is most wrongly sure."""
    loaded = load_model(find_model(run), device)
    data = split_of_run(loaded.config, run, "dev", loaded.tokenizer)
    texts, labels = data.store("dev").texts(MOST_TEXTS)
    found = TextClassifier.load(run, device=device).classify(texts)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for text, label, answer in zip(texts, labels, found, strict=True):
        if answer:
            predicted, prob = answer
            counts[label, predicted] += 1
            if predicted != label:
                wrong.append((prob, label, predicted, text))
    names = loaded.tokenizer.target.pieces(range(loaded.tokenizer.target.size))
    values = [[counts[label, predicted] for predicted in names] for label in names]
    spec = heat_map(names, names, values, ("predicted", "true label", "texts"))
    figure = charts.add("Confusion matrix (texts)", spec)
    rows = [["true", "predicted", "probability", "text"]]
    for prob, label, predicted, text in sorted(wrong, reverse=True)[:WRONG_TEXTS]:
        rows.append([label, predicted, f"{prob:.1%}", shorten(text, SHOWN_CHARACTERS)])
    share = f"{len(wrong):,} of {counts.total():,} texts are wrong"
    return [
        f"<h2>{escape(name)}: the development set</h2>",
        f'<div class="scroll">{figure}</div>',
        "<h3>Most wrong texts</h3>",
        paragraphs([f"{share}; here those of the highest probability."], "note"),
        table(rows, kind="text"),
    ]
