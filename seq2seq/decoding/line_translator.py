"""Lines of requests to lines of translations, with a progress bar and a summary."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seq2seq.decoding.options import Output
from seq2seq.decoding.request import Request
from seq2seq.decoding.translation import (
    count,
    json_line,
    log_errors,
    moses_lines,
    plain_line,
    summary,
)
from seq2seq.decoding.translator import Translator
from seq2seq.processes import Processes
from seq2seq.progress_bar import ProgressBar

logger = logging.getLogger(__name__)


class LineTranslator:
    """Translates requests to output lines; to be used in a `with` statement."""

    def __init__(
        self,
        translator: Translator,
        output: Output,
        processes: Processes,
        *,
        json_lines: bool = False,
        moses: bool = False,
        scores: bool = False,
        split: bool = True,
        total: int | None = None,
    ) -> None:
        """moses: a line for each of the n best. total: number of lines, for a progress bar."""
        self.translator, self.output, self.processes = translator, output, processes
        self.json_lines, self.moses, self.split = json_lines, moses, split
        self.scores = scores or output.nbest > 1 or not output.search
        self._total, self._done, self._tokens = total, 0, 0
        self._counts: Counter[str] = Counter()
        self._start = time.monotonic()
        self._bar = ProgressBar(total, visible=total is not None and processes.is_main)

    def __enter__(self) -> LineTranslator:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        self._bar.__exit__(kind, error, trace)

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        """Return a line for each request."""
        finished = self._done + len(requests) * self.processes.count
        found = self.translator.process(
            requests,
            output=replace(self.output, warnings=True),
            split=self.split,
            advance=self._advance,
        )
        # Blank lines are not searched, and parts of lines are counted one by one.
        self._advance((finished - self._done) // self.processes.count, 0)
        self._counts += count(found)
        log_errors(requests, found)
        if self.json_lines:
            nbest = self.output.nbest > 1
            pairs = zip(requests, found, strict=True)
            return [json_line(request, each, nbest=nbest) for request, each in pairs]
        alignment = self.output.alignment
        if self.moses:
            pairs = zip(requests, found, strict=True)
            return [moses_lines(line.number, each, alignment=alignment) for line, each in pairs]
        return [plain_line(each, scores=self.scores, alignment=alignment) for each in found]

    def _advance(self, lines: int, tokens: int) -> None:
        # The other processes have as many.
        lines, tokens = lines * self.processes.count, tokens * self.processes.count
        self._done, self._tokens = self._done + lines, self._tokens + tokens
        self._bar.advance(lines)
        seconds = max(time.monotonic() - self._start, 1e-3)
        whole = f" of {self._total:,}" if self._total is not None else ""
        self._bar.show(
            f"{self._done:,}{whole} lines  {self._tokens / seconds:,.0f} tokens/s"
            f"{self._bar.time_left()}"
        )

    def report(self) -> None:
        """Log what a user should know about the translations of all processes."""
        counts = sum(self.processes.all_gather([self._counts]), Counter())
        if self.processes.is_main:
            for message in summary(counts):
                logger.warning(message)
