"""fairseq system: its Transformer, criterion, Adam and Trainer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data.language_pair_dataset import collate
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer


class System:
    """Model in training. fairseq has no half precision on CPUs."""

    def __init__(self, shape: dict[str, Any], vocab_size: int, precision: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            words = "".join(f"w{i} 1\n" for i in range(vocab_size - 4))  # and 4 special symbols
            for language in ("en", "de"):
                (Path(folder) / f"dict.{language}.txt").write_text(words, encoding="utf-8")
            flags: dict[str, Any] = {
                "task": "translation",
                "source-lang": "en",
                "target-lang": "de",
                "arch": "transformer",
                "dropout": shape["dropout"],
                "criterion": "label_smoothed_cross_entropy",
                "label-smoothing": shape["label_smoothing"],
                "optimizer": "adam",
                "adam-betas": "(0.9, 0.98)",
                "lr": shape["rate"],
                "lr-scheduler": "fixed",
                "clip-norm": 0,
                "batch-size": 1,
            }
            for side in ("encoder", "decoder"):
                flags |= {
                    f"{side}-embed-dim": shape["dim"],
                    f"{side}-ffn-embed-dim": shape["ffn_dim"],
                    f"{side}-layers": shape["layers"],
                    f"{side}-attention-heads": shape["num_heads"],
                }
            arguments = [f"--{flag}={value}" for flag, value in flags.items()]
            parser = options.get_training_parser()
            config = convert_namespace_to_omegaconf(
                options.parse_args_and_arch(
                    parser, [folder, "--cpu", "--share-all-embeddings", *arguments]
                )
            )
            task = tasks.setup_task(config.task)
        self.dictionary = task.target_dictionary
        model = task.build_model(config.model)
        self.trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
        self.trainer.begin_epoch(1)

    def prepare(self, batch: dict[str, list[list[int]]]) -> Any:
        """Return a batch in the format of fairseq."""
        pad, eos = self.dictionary.pad(), self.dictionary.eos()
        samples = [
            {"id": i} | {side: torch.tensor([*batch[side][i], eos]) for side in batch}
            for i in range(len(batch["source"]))
        ]
        return collate(samples, pad, eos, left_pad_source=True, left_pad_target=False)

    def update(self, batch: Any) -> None:
        """Make one update."""
        self.trainer.train_step([batch])
