"""Search and scoring with a model that was exported to CTranslate2."""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.config import Config, DecodingConfig
from seq2seq.data.tokenizer import TOKENIZER_FILES, Tokenizer
from seq2seq.decoding.beams import Hypothesis, LengthPenalty
from seq2seq.decoding.engine import (
    Advance,
    Segment,
    batches,
    different_texts,
    max_source_tokens,
    max_target_tokens,
)
from seq2seq.errors import OptionError, UserError, not_a_number
from seq2seq.extras import require_extra
from seq2seq.files import SUMS_FILE, find_damage
from seq2seq.machine.threads import fixed_threads, usable_cores
from seq2seq.model.directory import load_tokenizer
from seq2seq.model.saved import EXPORTED_FILE, MODEL_FILE, describe_model

if TYPE_CHECKING:
    from seq2seq.model.cache import AttentionHeads

PATIENCE = 4
"""CTranslate2 ends a search when beam times patience hypotheses have ended, whatever the others may
become. From about 4 on, it finds what the search of `beam_search` finds, which goes on as long as a
better one is possible; with 1, its default, one in eight translations is another, worse one."""


def table_positions(config: Config) -> int:
    """Return the number of positions of an exported model: sources and targets may be as long."""
    if config.model.positions == "learned":
        return config.model.context
    return max(2048, 2 * max_source_tokens(config))


def _batches(
    segments: Sequence[Segment], limits: Sequence[int], decoding: DecodingConfig
) -> Iterator[list[int]]:
    """Yield batches of numbers, longest first, of segments with one maximum length of the target.

    A call of CTranslate2 has one maximum length, and prefixes for all segments or none.
    """
    groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for number, segment in enumerate(segments):
        if limits[number] > 1:
            groups[limits[number], bool(segment.prefix)].append(number)
    for group in sorted(groups, reverse=True):
        numbers = groups[group]
        lens = [(len(segments[number].source) + 1) * decoding.beam for number in numbers]
        for indices in batches(lens, decoding.batch_tokens):
            yield [numbers[index] for index in indices]


def _require_whole(folder: Path) -> None:
    """Raise UserError if a file of the model has changed; others, as the card, may."""
    kinds = ("*vocabulary.json", *TOKENIZER_FILES, EXPORTED_FILE, MODEL_FILE, "config.json")
    needed = {path.name for kind in kinds for path in folder.glob(kind)}
    others = {path.name for path in folder.iterdir()} - needed
    if (folder / SUMS_FILE).exists() and (
        problem := find_damage(folder, {*others, "README.md", "recipe.yaml"})
    ):
        raise UserError(f"{folder} is damaged: {problem}; export it again")


OBEYED = frozenset({
    "beam", "length_penalty", "penalty_form", "min_length", "max_factor", "max_extra",
    "no_repeat_ngram", "lookahead", "batch_tokens", "precision",
    "validation_beam",
})  # fmt: skip
"""Keys of the section `decoding` that a search of another program obeys, or that do not change its
result. The others must have their defaults."""


class ExportedEngine:
    """Searches and scores rows of token ids with CTranslate2."""

    def __init__(self, folder: Path, device: str | None = None, name: str = "the model") -> None:
        """device: defaults to the GPU, if there is one. name: for errors."""
        require_extra("ctranslate2", f"{folder} is a model for CTranslate2, which")
        import ctranslate2

        self.config, checksum = describe_model(folder)
        _require_whole(folder)
        self.tokenizer: Tokenizer = load_tokenizer(folder, checksum)
        self.name = name
        self.heads = None
        self.max_source_len = max_source_tokens(self.config)
        self.max_target_len = table_positions(self.config)
        source, target = self.tokenizer.source, self.tokenizer.target
        self._source_names = source.pieces(range(source.size))
        self._target_names = target.pieces(range(target.size))
        self._require_vocabulary(folder)
        self._target_ids = {token: i for i, token in enumerate(self._target_names)}
        self._suppressed = [[self._target_names[i]] for i in {target.pad_id, target.bos_id}]
        kind, _, index = (device or "auto").partition(":")
        on_gpu = kind == "cuda" or (kind == "auto" and ctranslate2.get_cuda_device_count())
        # Small products gain more from batches side by side than from threads.
        self._workers = 1 if on_gpu else fixed_threads() or usable_cores()
        try:
            self._translator = ctranslate2.Translator(
                str(folder),
                "cuda" if on_gpu else "cpu",
                device_index=int(index or 0),
                inter_threads=self._workers,
                intra_threads=1,
                max_queued_batches=-1,
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(f"CTranslate2 cannot load {folder}: {error}") from None

    def _require_vocabulary(self, folder: Path) -> None:
        """Raise UserError if the names of the tokens there are not those of the tokenizer."""
        for side, names in (("source", self._source_names), ("target", self._target_names)):
            files = [folder / f"{kind}_vocabulary.json" for kind in (side, "shared")]
            path = next((file for file in files if file.exists()), files[0])
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UserError(f"{path} cannot be read: {error}") from None
            if found != names:
                raise UserError(f"{path} is not the vocabulary of the tokenizer; export again")

    def require_supported(self, decoding: DecodingConfig, *, terms: bool, alignment: bool) -> None:
        """Raise UserError for options that CTranslate2 does not have."""
        default = DecodingConfig()
        found = [
            f"`{key}`"
            for key, value in vars(decoding).items()
            if key not in OBEYED and value != getattr(default, key)
        ]
        if decoding.penalty_form == "wu" and decoding.length_penalty > 0:
            found.append("`penalty_form`=wu")
        found += ["`alignment`"] if alignment else []
        found += ["terms and glossaries"] if terms else []
        if found:
            raise OptionError(
                f"{self.name} is a model for CTranslate2, which has no {' and no '.join(found)}; "
                "translate with the run it was exported from"
            )

    def search(
        self,
        segments: Sequence[Segment],
        decoding: DecodingConfig,
        *,
        nbest: int = 1,
        advance: Advance | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` best hypotheses of each segment, or fewer, the best first."""
        limits = [max_target_tokens(each, decoding, self.max_target_len) for each in segments]
        # Where nothing but the end symbol is allowed, there is nothing to search.
        found = [[Hypothesis([], 0.0, 0.0)] for _ in segments]
        pending: deque[tuple[list[int], list[Any]]] = deque()

        def collect() -> None:
            numbers, results = pending.popleft()
            for number, result in zip(numbers, results, strict=True):
                found[number] = self._hypotheses(result.result(), decoding)
            if advance:
                tokens = sum(len(found[number][0].tokens) + 1 for number in numbers)
                advance(len(numbers), tokens)

        for numbers in _batches(segments, limits, decoding):
            batch = [segments[number] for number in numbers]
            pending.append((numbers, self._submit(batch, limits[numbers[0]], decoding)))
            # A short queue: Ctrl-C waits until it is empty.
            if len(pending) > 2 * self._workers:
                collect()
        while pending:
            collect()
        self._rescore(segments, found, limits, decoding)
        if nbest == 1:
            return [each[:1] for each in found]
        return [different_texts(each, self.tokenizer)[:nbest] for each in found]

    def _submit(self, batch: Sequence[Segment], limit: int, decoding: DecodingConfig) -> list[Any]:
        """Start the search of a batch; return what waits for the result of each segment."""
        prefixes = _named(self._target_names, [segment.prefix for segment in batch])
        return list(
            self._translator.translate_batch(
                _named(self._source_names, [segment.source for segment in batch]),
                prefixes if any(prefixes) else None,
                asynchronous=True,
                beam_size=decoding.beam,
                patience=PATIENCE,
                num_hypotheses=1 if decoding.beam == 1 else decoding.beam * PATIENCE,
                length_penalty=decoding.length_penalty,
                no_repeat_ngram_size=decoding.no_repeat_ngram,
                disable_unk=True,
                suppress_sequences=self._suppressed,
                max_input_length=0,
                min_decoding_length=min(decoding.min_length, limit - 1),
                max_decoding_length=limit - 1,
                return_scores=True,
            )
        )

    def _rescore(
        self,
        segments: Sequence[Segment],
        found: list[list[Hypothesis]],
        limits: Sequence[int],
        decoding: DecodingConfig,
    ) -> None:
        """Score hypotheses again where CTranslate2's score is not that of the whole hypothesis.

        Those of the maximum length lack the end symbol, and so would be preferred; a prefix is left
        out; and probabilities are normalised over the tokens that a rule leaves.
        """
        ruled = bool(decoding.min_length or decoding.no_repeat_ngram)
        again = [
            (number, rank)
            for number, hypotheses in enumerate(found)
            for rank, hypothesis in enumerate(hypotheses)
            if ruled or segments[number].prefix or len(hypothesis.tokens) == limits[number] - 1
        ]
        pairs = [(segments[number].source, found[number][rank].tokens) for number, rank in again]
        for (number, rank), scored in zip(again, self.score(pairs, decoding), strict=True):
            found[number][rank] = scored
        for number in {number for number, _ in again}:
            found[number].sort(key=lambda hypothesis: -hypothesis.score)

    def _hypotheses(self, result: Any, decoding: DecodingConfig) -> list[Hypothesis]:
        penalty = LengthPenalty(decoding.length_penalty, "power")
        found = []
        for tokens, score in zip(result.hypotheses, result.scores, strict=True):
            if math.isnan(score):
                raise UserError(not_a_number(self.name))
            ids = [self._target_ids[token] for token in tokens]
            found.append(Hypothesis(ids, score * penalty(len(ids) + 1), score))
        return found

    def score(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        decoding: DecodingConfig,
        heads: AttentionHeads | None = None,
    ) -> list[Hypothesis]:
        """Return the log-probabilities of given targets, as ids without the end symbol."""
        assert heads is None, "CTranslate2 returns no attention of given targets"
        if not pairs:
            return []
        found = self._translator.score_batch(
            _named(self._source_names, [source for source, _ in pairs]),
            _named(self._target_names, [target for _, target in pairs]),
            max_input_length=0,
            max_batch_size=decoding.batch_tokens,
            batch_type="tokens",
        )
        penalty = LengthPenalty(decoding.length_penalty, decoding.penalty_form)
        scored = []
        for (_, target), result in zip(pairs, found, strict=True):
            log_probs = [float(each) for each in result.log_probs]
            total = sum(log_probs)
            score = total / penalty(len(log_probs))
            scored.append(Hypothesis(list(target), total, score, log_probs=log_probs))
        return scored


def _named(names: Sequence[str], rows: Sequence[Sequence[int]]) -> list[list[str]]:
    """Return the tokens of rows of ids."""
    return [[names[i] for i in row] for row in rows]
