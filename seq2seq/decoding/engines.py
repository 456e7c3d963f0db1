"""The choice between the engines CTranslate2 and PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seq2seq.config import Config, DecodingConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.ctranslate2_engine import CTranslate2Engine
from seq2seq.decoding.engine import Engine
from seq2seq.errors import UserError
from seq2seq.formats.ctranslate2 import has_ctranslate2, temporarily_converted

if TYPE_CHECKING:
    from seq2seq.decoding.torch_engine import TorchEngine
    from seq2seq.model.transformer import Transformer

logger = logging.getLogger(__name__)

EnginePrecision = Literal["fp32", "bf16", "fp16", "int8"]


@dataclass
class Engines:
    """The engines of a model or an ensemble. An engine is loaded when it is first used."""

    tokenizer: Tokenizer
    configs: Sequence[Config]
    device: str
    precision: EnginePrecision
    """fp32 or int8 on a CPU; fp32, bf16 or fp16 on a GPU."""
    folder: Callable[[str], AbstractContextManager[Path]]
    """Returns a context manager that yields a folder with the model in CTranslate2's format, given
    the data type of its weights."""
    models: Callable[[], Sequence[Transformer]] | None
    """Returns the PyTorch models; None for a model that was exported to CTranslate2."""
    name: str = "the model"
    """Name of the model in errors."""
    is_logged: bool = True
    """Whether to log the choice of an engine."""

    @classmethod
    def of_model(cls, model: Transformer, tokenizer: Tokenizer, config: Config) -> Engines:
        """Return the engines of a model in memory."""
        device = str(model.device)
        precision = decoding_precision(config.decoding, device)
        convert = partial(temporarily_converted, model, tokenizer, config)
        return cls(tokenizer, [config], device, precision, convert, lambda: [model])

    @property
    def max_target_len(self) -> int:
        """Maximum number of target tokens, including the end symbol."""
        positions = min(config.num_positions for config in self.configs)
        return positions - self.tokenizer.source.language_first

    def engine_for(self, decoding: DecodingConfig, *, terms: bool = False) -> Engine:
        """Return the engine for decoding with these options, and log the choice once.

        PyTorch decodes on a GPU, and with ensembles or options that CTranslate2 does not support.
        Otherwise CTranslate2 decodes, if it is installed. A model that was exported to CTranslate2
        always uses CTranslate2. terms: some translations must contain given terms.
        """
        if decoding.sample and terms:
            raise UserError("glossaries and constraints need beam search, not sampling")
        unsupported = "sampling" if decoding.sample else "terms and glossaries" if terms else ""
        if self.models is None:
            if unsupported:
                raise UserError(
                    f"{self.name} is exported to CTranslate2, which does not support {unsupported}"
                    ": translate with the original run"
                )
            return self.ctranslate2
        reason = ""
        if self.device != "cpu":
            reason = self.device
        elif len(self.configs) > 1:
            reason = "CTranslate2 does not support ensembles"
        elif unsupported:
            reason = f"CTranslate2 does not support {unsupported}"
        elif not has_ctranslate2():
            reason = "CTranslate2 is not installed"
        if self.is_logged and ("torch" if reason else "ctranslate2") not in vars(self):
            engine = f"PyTorch ({reason})" if reason else f"CTranslate2 ({self.precision})"
            logger.info("decoding with %s", engine)
        return self.torch if reason else self.ctranslate2

    @cached_property
    def ctranslate2(self) -> CTranslate2Engine:
        """The CTranslate2 engine."""
        exported = self.models is None
        data_type = {"fp32": "float32", "int8": "int8"}[self.precision]
        with self.folder(data_type) as folder:
            return CTranslate2Engine(
                folder,
                self.tokenizer,
                self.max_target_len,
                device=self.device,
                compute_type="default" if exported else data_type,
                name=self.name,
            )

    @cached_property
    def torch(self) -> TorchEngine:
        """The PyTorch engine."""
        from seq2seq.decoding.torch_engine import TorchEngine
        from seq2seq.model.transformer import for_inference

        assert self.models
        # On a CPU always fp32, so that results do not depend on the machine.
        precision = "fp32" if self.precision == "int8" else self.precision
        models = [for_inference(model, precision) for model in self.models()]
        return TorchEngine(models, self.tokenizer, self.max_target_len, self.name)


def decoding_precision(decoding: DecodingConfig, device: str) -> EnginePrecision:
    """Return the precision of decoding on a device.

    bf16 and fp16 become fp32 on a CPU, with a warning. On a GPU int8 is treated as auto. Raises
    UserError if the GPU does not support the precision.
    """
    if device != "cpu":
        import torch

        from seq2seq.machine.precision import resolve_precision

        precision = "auto" if decoding.precision == "int8" else decoding.precision
        return resolve_precision(precision, torch.device(device), key="decoding.precision")
    if decoding.precision in ("bf16", "fp16"):
        logger.warning("precision=%s needs a GPU: decoding in fp32", decoding.precision)
    return "int8" if decoding.precision == "int8" else "fp32"
