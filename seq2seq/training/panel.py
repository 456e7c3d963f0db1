"""The live panel of a training run on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from seq2seq.progress_bar import duration

BARS = "▁▂▃▄▅▆▇█"
SHOWN_SCORES = 40
"""Number of validations in the sparkline."""


class TrainingPanel:
    """Loss, scores, speed, memory, time left and last checkpoint, to be used in a `with` statement.

    The lines of the log appear above it.
    """

    def __init__(self, name: str, max_steps: int, metric: str) -> None:
        """metric: the score that selects the best model."""
        self.name, self.max_steps, self.metric = name, max_steps, metric
        self._step = 0
        self._metrics: dict[str, float] = {}
        self._minutes_left = math.nan
        self._scores: list[tuple[int, float]] = []
        self._checkpoint: int | None = None
        self._live = Live(
            console=Console(stderr=True), transient=True, get_renderable=self.render,
            refresh_per_second=2,
        )  # fmt: skip

    def __enter__(self) -> TrainingPanel:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def advance(self, step: int) -> None:
        """Show the number of updates."""
        self._step = step

    def training(self, minutes_left: float, metrics: dict[str, float]) -> None:
        """Show the metrics of a log step."""
        self._minutes_left, self._metrics = minutes_left, metrics

    def validation(self, step: int, metrics: dict[str, float]) -> None:
        """Show a score on the development set."""
        if self.metric in metrics:
            self._scores.append((step, metrics[self.metric]))

    def checkpoint(self, step: int) -> None:
        """Show the update of the last checkpoint."""
        self._checkpoint = step

    def render(self) -> Panel:
        """Return the panel as it is now."""
        found, rows = self._metrics, Table.grid(padding=(0, 2))
        rows.add_column(style="dim")
        rows.add_column()
        if found:
            rows.add_row("loss", f"{found['loss']:.3f}   learning rate {found['lr']:.2e}")
        if self._scores:
            rows.add_row(f"dev {self.metric}", self._score_line())
        if found:
            speed = f"{found['tokens_per_second']:,.0f} tokens/s   MFU {found['mfu']:.0%}"
            rows.add_row("speed", f"{speed}   memory {found['memory_gib']:.1f} GiB")
        saved = "none yet" if self._checkpoint is None else f"update {self._checkpoint:,}"
        rows.add_row("checkpoint", saved)
        head = Table.grid(padding=(0, 2), expand=True)
        head.add_column(no_wrap=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True)
        left = "" if math.isnan(self._minutes_left) else f"{duration(self._minutes_left)} left"
        # rich draws a full bar in the colour of an empty one
        bar = ProgressBar(total=1.0, completed=self._share(), finished_style="bar.complete")
        head.add_row(f"update {self._step:,}", bar, left)
        return Panel(Group(head, rows), title=Text(self.name), title_align="left")

    def _share(self) -> float:
        """Return the finished share of the run, by updates or by time."""
        minutes = self._metrics.get("minutes", 0.0)
        by_time = 0.0
        if minutes and not math.isnan(self._minutes_left):
            by_time = minutes / (minutes + self._minutes_left)
        return max(by_time, self._step / max(1, self.max_steps))

    def _score_line(self) -> str:
        values = [value for _, value in self._scores if not math.isnan(value)]
        _, last = self._scores[-1]
        if not values:
            return f"{last}"
        best = (min if self.metric == "nll" else max)(values)
        at = next(step for step, value in self._scores if value == best)
        return f"{last:.2f}   best {best:.2f} at update {at:,}   {sparkline(values)}"


def sparkline(values: Sequence[float]) -> str:
    """Return the last values as a line of bars."""
    shown = list(values)[-SHOWN_SCORES:]
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)
