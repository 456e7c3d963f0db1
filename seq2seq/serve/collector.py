"""Batches of lines from concurrent requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from seq2seq.config import DecodingConfig
from seq2seq.decoding.translation import Options, Request, Translation
from seq2seq.decoding.translator import Translator
from seq2seq.serve import limits

BATCH_LINES = 160
"""Maximum number of lines of a batch. A batch has lines of small or of large requests."""
BATCH_CHARACTERS = 40_000
"""Number of characters after which a batch ends."""
SHARE = 16
"""Number of lines of a request in a batch before the next request has its turn."""
CONCURRENT = 2
"""Number of batches at once: one is encoded and decoded while the other is searched."""
WAIT = 0.003
"""Seconds to wait for more lines before a batch, if another batch is being translated."""
LARGE = 4_000
"""Number of characters above which a request is large, as with more than `SHARE` lines."""
LARGE_TOKENS = 512
"""`decoding.batch_tokens` of large requests: the searches of others come in between."""


@dataclass(eq=False)
class Job:
    """The lines of a request on their way through the batches."""

    lines: Sequence[Request]
    options: Options
    decoding: DecodingConfig
    done: asyncio.Future[None]
    is_large: bool
    results: dict[int, Translation] = field(default_factory=dict)
    next_line: int = 0
    """Index of the first line that is not yet in a batch."""


Batch = list[tuple[Job, int]]
"""Lines of jobs, by their index."""


class Collector:
    """Translates lines of all requests to a model in common batches, in turn."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.num_waiting = 0
        """Number of lines of all requests that are not yet answered."""
        self._jobs: deque[Job] = deque()
        self._threads = ThreadPoolExecutor(CONCURRENT, thread_name_prefix="translate")
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each batch that is being translated."""
        self._translates_large = False

    async def translate(
        self, lines: Sequence[Request], options: Options, **changes: Any
    ) -> list[Translation]:
        """Return a translation for each line. If this is cancelled, waiting lines are dropped.

        changes: of the model's section `decoding`.
        """
        if not lines:
            return []
        done = asyncio.get_running_loop().create_future()
        if is_large := len(lines) > SHARE or sum(map(len, lines)) > LARGE:
            changes["batch_tokens"] = LARGE_TOKENS
        decoding = replace(self.translator.decoding, **changes)
        job = Job(lines, options, decoding, done, is_large)
        self._jobs.append(job)
        self.num_waiting += len(lines)
        self._start()
        try:
            await job.done
        finally:
            if job in self._jobs:
                self._jobs.remove(job)
            self.num_waiting -= len(lines)
        results = [job.results[i] for i in range(len(lines))]
        limits.TOKENS.inc(sum(len(best.pieces) for result in results for best in result.nbest[:1]))
        return results

    def _start(self) -> None:
        """Translate the next batch, unless there are enough batches."""
        if self._next_jobs() and len(self._tasks) < CONCURRENT:
            task = asyncio.create_task(self._translate_batch())
            self._tasks.add(task)
            task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    async def _translate_batch(self) -> None:
        if len(self._tasks) > 1:
            await asyncio.sleep(WAIT)
        if not (batch := self._next_batch()):
            return
        limits.BATCHES.observe(len(batch))
        is_large = batch[0][0].is_large
        self._translates_large |= is_large
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._threads, self._process, batch)
        finally:
            if is_large:
                self._translates_large = False
        for (job, index), result in zip(batch, results, strict=True):
            if job.done.done():
                continue
            if isinstance(result, Exception):
                job.done.set_exception(result)
                continue
            job.results[index] = result
            if len(job.results) == len(job.lines):
                job.done.set_result(None)

    def _next_jobs(self) -> list[Job]:
        """Return the jobs whose turn it is: large ones, unless a batch of them is translated."""
        large = [job for job in self._jobs if job.is_large]
        if large and not self._translates_large:
            return large
        return [job for job in self._jobs if not job.is_large]

    def _next_batch(self) -> Batch:
        """Return lines with equal options, a share of each waiting job in turn."""
        batch: Batch = []
        characters = 0
        jobs = self._next_jobs()
        equal = deque(
            job
            for job in jobs
            if (job.options, job.decoding) == (jobs[0].options, jobs[0].decoding)
        )
        while equal and len(batch) < BATCH_LINES and characters < BATCH_CHARACTERS:
            job = equal.popleft()
            self._jobs.remove(job)
            for _ in range(min(SHARE, BATCH_LINES - len(batch), len(job.lines) - job.next_line)):
                batch.append((job, job.next_line))
                characters += len(job.lines[job.next_line])
                job.next_line += 1
                if characters >= BATCH_CHARACTERS:
                    break
            if job.next_line < len(job.lines):  # behind the others
                self._jobs.append(job)
                equal.append(job)
        return batch

    def _process(self, batch: Batch) -> list[Translation | Exception]:
        """Translate a batch. If the search fails, divide the batch to find the line."""

        def check(_: int) -> None:
            if all(job.done.done() for job, _ in batch):
                raise CancelledError  # nobody waits for it

        lines = [job.lines[index] for job, index in batch]
        options, decoding = batch[0][0].options, batch[0][0].decoding
        try:
            return [*self.translator.process(lines, options, decoding, check)]
        except CancelledError as error:
            return [error] * len(batch)
        except Exception as error:
            if len(batch) > 1:
                half = len(batch) // 2
                return self._process(batch[:half]) + self._process(batch[half:])
            return [error]
