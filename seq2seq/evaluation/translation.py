"""nll and BLEU of a translation model on a split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import torch

from seq2seq.config import DecodingConfig
from seq2seq.data.batching import micro_batches, share
from seq2seq.data.packing import collate
from seq2seq.data.prepared import PreparedData
from seq2seq.data.streams import process_shared
from seq2seq.decoding.alignment import choose_heads
from seq2seq.decoding.engine import SearchEngine
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import Score, score
from seq2seq.evaluation.split_evaluator import SplitEvaluator
from seq2seq.machine.threads import timed
from seq2seq.machine.workers import usable_workers
from seq2seq.model.directory import HEADS_FILE, load_model, save_heads
from seq2seq.model.inference import choose_precision, for_inference
from seq2seq.model.transformer import Transformer
from seq2seq.training.loss import ModelLoss

ALIGNED_SENTENCES = 1_000
"""Number of sentences of the development set by which alignment heads are chosen."""


def choose_alignment_heads(data: PreparedData, folders: Sequence[Path], device: str) -> None:
    """Add the heads that align words best to model directories that do not have them.

    Those of the first one, which is the best, are logged.
    """
    for folder in folders:
        if (folder / HEADS_FILE).exists():
            continue
        loaded = load_model(folder, device)
        engine = SearchEngine(
            [cast(Transformer, loaded.model)], loaded.tokenizer, [loaded.config], name=str(folder)
        )
        texts = data.store("dev").texts(ALIGNED_SENTENCES)
        if heads := choose_heads(engine, *texts, log=folder == folders[0]):
            save_heads(folder, heads)


@dataclass
class TranslationEvaluator(SplitEvaluator):
    """Evaluates a translation model with sacreBLEU."""

    def __post_init__(self) -> None:
        config = self.config
        # A score is that of the recipe's search, as in papers, without a second one.
        self.decoding = replace(config.decoding, retry_repetitions=False)
        if self.validation:
            beam = config.decoding.validation_beam
            self.decoding = replace(self.decoding, beam=beam, diverse_groups=1)
        self.translates = not self.validation or config.training.best_by == "bleu"
        self.store = self.data.store(self.split)
        self.sources, self.references = self.store.texts(self.limit)
        self.translations: Sequence[str] = ()
        """Of the last call, as are their scores and the search that made them."""
        self.scores: Sequence[Score] = ()
        self.search = ""
        longest = max(int(self.store.source_lens.max()), int(self.store.target_lens.max()))
        positions, context = config.model.positions, config.model.context
        if positions == "learned" and longest > context:
            raise UserError(
                f"the {self.split} set has a sentence of {longest} tokens, but model.positions="
                f"learned has model.context={context} positions: train with more"
            )

    def extent(self) -> str:
        """Return on how many sentences it evaluates, and how it searches."""
        beam = self.decoding.beam
        search = "greedy search" if beam == 1 else f"a beam of {beam}"
        how = f", {search}" if self.translates else ", without a search"
        return f"{len(self.sources):,} of {len(self.store):,} sentences{how}"

    def details(self) -> dict[str, object]:
        """Return the signatures of the scores, the search and the number of sentences."""
        signatures = {each.signature_key: each.signature for each in self.scores}
        search = {"search": self.search} if self.search else {}
        return {**signatures, **search, "sentences": len(self.sources)}

    def __call__(self, model: Transformer) -> dict[str, float]:
        """Return loss, nll, perplexity, bleu, chrf and ter; the processes share the work."""
        metrics = self._nll(model)
        if not self.translates:
            return metrics
        if math.isnan(metrics["nll"]):  # a search would raise
            return metrics | dict.fromkeys(("bleu", "chrf", "ter"), math.nan)
        precision = choose_precision(self.decoding.precision, model.device, evaluation=True)
        engine = SearchEngine([for_inference(model, precision)], self.data.tokenizer, [self.config])
        # A training run has threads, which make a fork unsafe.
        if not self.validation and self.processes.count == 1 and engine.device.type == "cpu":
            engine.workers = usable_workers()
        translator = Translator(engine, self.decoding)
        self.translations = process_shared(translator.translate, self.sources, self.processes)
        self.search = describe_search(self.decoding, precision)
        tokenize = self.config.data.bleu_tokenizer
        self.scores = score(self.translations, [self.references], tokenize=tokenize)
        return metrics | {each.key: each.value for each in self.scores}

    @torch.inference_mode()
    def _nll(self, model: Transformer) -> dict[str, float]:
        """Return label-smoothed `loss` and `nll`, in nats per target token, and perplexity."""
        training, processes = self.config.training, self.processes
        criterion = ModelLoss(model, training.label_smoothing)
        loss_sum = nll_sum = num_tokens = 0.0
        lens = self.store.target_lens[: len(self.sources)]
        own = share(lens, processes.index, processes.count)
        sources, targets = self.store.pairs(own)
        plan = micro_batches(
            self.store.source_lens[own],
            self.store.target_lens[own],
            max_tokens=training.micro_batch_tokens,
        )
        for indices in plan:
            pairs = [sources[i] for i in indices], [targets[i] for i in indices]
            batch = collate(*pairs, self.data.tokenizer)
            with timed("scoring", batch.num_tokens, model.device):
                loss, nll = criterion(batch.to(model.device))
            loss_sum, nll_sum = loss_sum + float(loss), nll_sum + float(nll)
            num_tokens += batch.num_labels
        loss_sum, nll_sum, num_tokens = processes.all_reduce_sum(loss_sum, nll_sum, num_tokens)
        nll = nll_sum / num_tokens
        return {"loss": loss_sum / num_tokens, "nll": nll, "perplexity": math.exp(min(nll, 700))}


def describe_search(decoding: DecodingConfig, precision: str) -> str:
    """Return what a search depends on: beam, length penalty, other changed options, precision."""
    always = ("beam", "length_penalty", "penalty_form")
    left_out = ("precision", "batch_tokens", "validation_beam")
    default = asdict(DecodingConfig())
    shown = {key: x for key, x in asdict(decoding).items()
             if key in always or (key not in left_out and x != default[key])}  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in {**shown, "precision": precision}.items())
