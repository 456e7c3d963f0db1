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
from seq2seq.evaluation.systems import Run, System, TestSet
from seq2seq.evaluation.test_sets import split_of_run
from seq2seq.report.page import (
    Charts,
    Rows,
    bar_chart,
    details,
    heat_map,
    paragraphs,
    table,
    text_fields,
)
from seq2seq.report.scores import group_rows

Tokens = tuple[int, ...]
"""Ids of a hypothesis, without its end."""
NUM_SAMPLES = 8
SCORED_SENTENCES = 1_000
"""Of so many sentences of the development set the scores by length are."""
MOST_TOKENS = 40
"""Pictures of longer sentences would not be legible."""
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
    body = [f"<h2>{escape(name)}: the development set</h2>"]
    if config.task == "translation":
        body += _translation(charts, config, run, device, sentence)
    elif config.task == "language_model":
        body += _language_model(charts, config, run, device)
    elif config.task == "classification":
        body += _classifier(charts, config, run, device)
    return body


def _translation(
    charts: Charts, config: Config, run: Path, device: str, sentence: str | None
) -> list[str]:
    """Return samples of a run's translations; sentence: the source whose search is shown."""
    translator = Translator.load(run, device=device)
    data = split_of_run(config, run, "dev", translator.tokenizer)
    sources, references = data.store("dev").texts(SCORED_SENTENCES)
    system = System("", translator.translate(sources))
    groups = by_length([system], TestSet([references], tokenize=config.data.bleu_tokenizer))
    body = ["<h3>Scores by length</h3>", table(group_rows(groups, "words of the reference"))]
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
    return [*body, *_search(translator, sentence or texts[0])]


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


@torch.inference_mode()
def _search(translator: Translator, text: str) -> list[str]:
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
    note = (
        f"Source: {text!r}. A beam of {decoding.beam}, without rules. Where hypotheses part, their "
        "continuations are a list; the best one is marked. Point at a token for log-probabilities."
    )
    shown = search_tree(alive, finished, target.pieces(range(target.size)))
    return ["<h3>A search</h3>", paragraphs([note], "note"), shown]


def search_tree(
    alive: Mapping[Tokens, float], finished: Mapping[Tokens, Finished], pieces: Sequence[str]
) -> str:
    """Return the hypotheses of a search as nested lists, in HTML.

    alive: log-probabilities of token sequences, that of the empty one is 0. The first of `finished`
    is the best.
    """
    best = next(iter(finished), ())
    following: dict[Tokens, list[Tokens]] = {}
    for tokens in sorted(alive):
        if tokens:
            following.setdefault(tokens[:-1], []).append(tokens)

    def shown(tokens: Tokens) -> str:
        total = alive[tokens]
        title = f"log-probability {total - alive[tokens[:-1]]:.3f}, of the whole {total:.3f}"
        text = escape(pieces[tokens[-1]]) if tokens else "start"
        if tokens in finished:
            text += f" (end {finished[tokens].score:.2f})"
        tag = "mark" if tokens == best[: len(tokens)] else "span"
        return f'<{tag} title="{title}">{text}</{tag}>'

    def branch(tokens: Tokens) -> str:
        """Return the only continuation as one line, and a list of several below it."""
        line, below = shown(tokens), following.get(tokens, [])
        while len(below) == 1:
            [tokens] = below
            line, below = f"{line} {shown(tokens)}", following.get(tokens, [])
        lists = "".join(map(branch, below))
        return f"<li>{line}<ul>{lists}</ul></li>" if below else f"<li>{line}</li>"

    return f'<div class="scroll"><ul class="tree">{branch(())}</ul></div>'


@torch.inference_mode()
def _language_model(charts: Charts, config: Config, run: Path, device: str) -> list[str]:
    """Return bits by position in the context, and samples."""
    generator = TextGenerator.load(run, device=device)
    tokens = split_of_run(config, run, "dev", generator.tokenizer).tokens("dev")
    model = generator.model
    context = min(config.model.context, len(tokens) - 1)
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
    body = [charts.add(title, bar_chart(rows, x, y))]
    parts = [""] * SAMPLES
    sampling = Sampling(temperature=0.8)
    for new in generator.generate(length=SAMPLE_TOKENS, sampling=sampling, seed=1, samples=SAMPLES):
        parts = [text + more for text, more in zip(parts, new, strict=True)]
    body += ["<h3>Samples</h3>", paragraphs(["Temperature 0.8, seed 1."], "note")]
    return [*body, *(f'<pre style="white-space: pre-wrap">{escape(text)}</pre>' for text in parts)]


def _classifier(charts: Charts, config: Config, run: Path, device: str) -> list[str]:
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
    values = [[counts[label, predicted] for predicted in names] for label in names]
    spec = heat_map(names, names, values, ("predicted", "true label", "texts"))
    figure = charts.add("Confusion matrix (texts)", spec)
    rows = [["true", "predicted", "probability", "text"]]
    for prob, label, predicted, text in sorted(wrong, reverse=True)[:WRONG_TEXTS]:
        rows.append([label, predicted, f"{prob:.1%}", shorten(text, SHOWN_CHARACTERS)])
    share = f"{len(wrong):,} of {counts.total():,} texts are wrong"
    return [
        f'<div class="scroll">{figure}</div>',
        "<h3>Most wrong texts</h3>",
        paragraphs([f"{share}; here those of the highest probability."], "note"),
        table(rows, kind="text"),
    ]
