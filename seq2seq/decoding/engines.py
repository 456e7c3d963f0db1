"""The engines of a model, and which of them searches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq.config import Config, DecodingConfig, DecodingPrecision
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.ctranslate2_engine import CTranslate2Engine, missing_options
from seq2seq.decoding.engine import Engine
from seq2seq.errors import OptionError
from seq2seq.machine.devices import named_device
from seq2seq.model.converted import has_ctranslate2, temporarily_converted
from seq2seq.model.saved import max_source_tokens, num_positions

if TYPE_CHECKING:
    from seq2seq.decoding.torch_engine import TorchEngine
    from seq2seq.model.transformer import Transformer

logger = logging.getLogger(__name__)


@dataclass
class Engines:
    """The engines of a model or an ensemble, each of which is loaded when it is first needed."""

    tokenizer: Tokenizer
    configs: Sequence[Config]
    """Recipes of the models."""
    device: str
    precision: DecodingPrecision
    """fp32 or int8 on a CPU; fp32, bf16 or fp16 on a GPU."""
    folder: Callable[[], AbstractContextManager[Path]]
    """Yields the model in CTranslate2's form."""
    models: Callable[[], Sequence[Transformer]] | None
    """Returns the models for torch; None for a model that CTranslate2 alone can read."""
    name: str = "the model"
    """For errors."""
    is_logged: bool = True
    """Whether to log that an engine is loaded, and why."""

    @classmethod
    def of_model(
        cls,
        model: Transformer,
        tokenizer: Tokenizer,
        config: Config,
        precision: DecodingPrecision = "fp32",
    ) -> Engines:
        """Return the engines of a model in memory."""
        device = str(model.device)
        convert = partial(temporarily_converted, model, tokenizer, config)
        return cls(tokenizer, [config], device, precision, convert, lambda: [model])

    @property
    def max_source_len(self) -> int:
        """Maximum number of tokens of a source, without the end symbol."""
        return min(map(max_source_tokens, self.configs))

    @property
    def max_target_len(self) -> int:
        """Maximum number of tokens of a target, with the end symbol."""
        return min(map(num_positions, self.configs))

    def choose(self, decoding: DecodingConfig, *, terms: bool = False) -> Engine:
        """Return the engine for a search with these options, and log the reason once.

        That is CTranslate2 on a CPU, and torch on a GPU and for what CTranslate2 does not have.
        """
        if decoding.sample and terms:
            raise OptionError("terms need a beam search: leave `sample` out")
        missing = missing_options(decoding, terms=terms)
        if self.models is None:
            if missing:
                raise OptionError(
                    f"{self.name} is a model for CTranslate2, which has no "
                    f"{' and no '.join(missing)}; translate with the run it was exported from"
                )
            return self.ctranslate2
        reason = None
        if self.device != "cpu":
            reason = f"on {self.device}"
        elif len(self.configs) > 1:
            reason = "since CTranslate2 has no ensembles"
        elif missing:
            reason = f"since CTranslate2 has no {' and no '.join(missing)}"
        elif not has_ctranslate2():
            reason = "since CTranslate2 is not installed"
        if self.is_logged and ("torch" if reason else "ctranslate2") not in vars(self):
            engine = f"torch, {reason}" if reason else f"CTranslate2, in {self.precision}"
            logger.info("searching with %s", engine)
        return self.torch if reason else self.ctranslate2

    @cached_property
    def ctranslate2(self) -> CTranslate2Engine:
        """The engine of CTranslate2."""
        exported = self.models is None
        types = {"fp32": "float32", "int8": "int8"}
        with self.folder() as folder:
            return CTranslate2Engine(
                folder,
                self.tokenizer,
                self.max_target_len,
                device=self.device,
                compute_type="default" if exported else types[self.precision],
                name=self.name,
            )

    @cached_property
    def torch(self) -> TorchEngine:
        """The engine of torch."""
        from seq2seq.decoding.torch_engine import TorchEngine
        from seq2seq.model.inference import choose_precision, for_inference

        assert self.models
        models = self.models()
        precision = choose_precision(self.precision, models[0].device)
        models = [for_inference(model, precision) for model in models]
        return TorchEngine(models, self.tokenizer, self.max_target_len, self.name)


def search_precision(decoding: DecodingConfig, device: str) -> DecodingPrecision:
    """Return the precision of a search on a device; on a CPU fp32 or int8.

    A recipe for GPUs also works on a CPU, with a warning.
    """
    if device != "cpu":
        from seq2seq.model.inference import choose_precision  # which loads torch

        return choose_precision(decoding.precision, named_device(device))
    if decoding.precision in ("bf16", "fp16"):
        logger.warning("precision=%s is for GPUs: this CPU searches in fp32", decoding.precision)
    return "int8" if decoding.precision == "int8" else "fp32"
