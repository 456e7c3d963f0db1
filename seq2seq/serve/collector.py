"""Batches of lines from concurrent requests."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from seq2seq.config import DecodingConfig
from seq2seq.decoding.segments import Options, Request, Translation
from seq2seq.decoding.translator import Translator

BATCH_LINES = 160
"""Maximum number of lines of a batch."""
SHARE = 16
"""Maximum number of lines of a request in a batch while others wait."""
CONCURRENT = 2
"""Number of batches at once: one is encoded and decoded while the other is searched."""
WAIT = 0.003
"""Seconds to wait for more lines before a batch, if another batch is being translated."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """The lines of a request on their way through the batches."""

    lines: Sequence[Request]
    options: Options
    decoding: DecodingConfig
    done: asyncio.Future[None]
    results: list[Translation | None] = field(default_factory=list)
    next_line: int = 0
    """Index of the first line that is not yet in a batch."""
    num_done: int = 0

    def __post_init__(self) -> None:
        self.results = [None] * len(self.lines)


class Collector:
    """Translates lines of all requests to a model in common batches, in turn."""

    def __init__(
        self, translator: Translator, on_batch: Callable[[int], None] = lambda size: None
    ) -> None:
        """on_batch: called with the size of each batch."""
        self.translator, self.on_batch = translator, on_batch
        self.num_waiting = 0
        """Number of lines that are not yet translated."""
        self._jobs: deque[Job] = deque()
        self._threads = ThreadPoolExecutor(CONCURRENT, thread_name_prefix="translate")
        self._slots = CONCURRENT
        self._tasks: set[asyncio.Task[None]] = set()

    async def translate(
        self, lines: Sequence[Request], options: Options, decoding: DecodingConfig | None = None
    ) -> list[Translation]:
        """Return a translation for each line. If this is cancelled, waiting lines are dropped."""
        if not lines:
            return []
        loop = asyncio.get_running_loop()
        decoding = decoding or self.translator.decoding
        job = Job(lines, options, decoding, loop.create_future())
        self._jobs.append(job)
        self.num_waiting += len(lines)
        self._start()
        try:
            await job.done
        finally:
            if job in self._jobs:
                self._jobs.remove(job)
            self.num_waiting -= len(lines)
        return [result for result in job.results if result]

    def _start(self) -> None:
        """Translate the next batch if a slot is free."""
        if self._jobs and self._slots:
            self._slots -= 1
            task = asyncio.create_task(self._translate_batch())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _translate_batch(self) -> None:
        try:
            if self._slots < CONCURRENT - 1:
                await asyncio.sleep(WAIT)
            if batch := self._next_batch():
                self.on_batch(len(batch))
                loop = asyncio.get_running_loop()
                results = await loop.run_in_executor(self._threads, self._process, batch)
                for (job, index), result in zip(batch, results, strict=True):
                    job.results[index] = result
                    job.num_done += 1
                    if job.num_done == len(job.lines) and not job.done.done():
                        job.done.set_result(None)
        finally:
            self._slots += 1
            self._start()

    def _next_batch(self) -> list[tuple[Job, int]]:
        """Return lines with equal options, a share of each waiting job in turn."""
        batch: list[tuple[Job, int]] = []
        if not self._jobs:
            return batch
        settings = self._jobs[0].options, self._jobs[0].decoding
        equal = deque(job for job in self._jobs if (job.options, job.decoding) == settings)
        while equal and (room := BATCH_LINES - len(batch)):
            job = equal.popleft()
            stop = min(job.next_line + min(SHARE, room), len(job.lines))
            batch += [(job, index) for index in range(job.next_line, stop)]
            job.next_line = stop
            self._jobs.remove(job)
            if stop < len(job.lines):  # behind the others
                self._jobs.append(job)
                equal.append(job)
        return batch

    def _process(self, batch: Sequence[tuple[Job, int]]) -> list[Translation]:
        """Translate a batch. If the search fails, translate each line by itself."""
        lines = [job.lines[index] for job, index in batch]
        options, decoding = batch[0][0].options, batch[0][0].decoding
        try:
            return self.translator.process(lines, options, decoding)
        except Exception as error:
            if len(batch) > 1:
                return [self._process([item])[0] for item in batch]
            logger.warning("a line could not be translated: %s", type(error).__name__)
            return [Translation(lines[0], error=str(error))]

    def close(self) -> None:
        """End the threads, after the batches that are being translated."""
        self._threads.shutdown()
