"""Limits and metrics of a server, and its keys."""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError

MAX_BYTES = 10_000_000
"""Size of a request's body."""
MAX_TEXTS = 1_000
MAX_ALTERNATIVES = 9
MAX_TERMS = 1_000
MAX_WAITING = 10_000
"""Number of lines that wait for their translation. Further requests are refused."""
MAX_SECONDS = 120.0
"""Time to receive and to answer a request."""
MAX_ADDRESSES = 10_000
"""Number of keys and addresses whose requests are counted."""
MINUTE = 60.0

REQUESTS = Counter("seq2seq_requests", "Requests", ["path", "status"])
LATENCY = Histogram("seq2seq_latency_seconds", "Time to an answer")
LINES = Counter("seq2seq_lines", "Lines to translate")
CHARACTERS = Counter("seq2seq_characters", "Characters to translate")
TOKENS = Counter("seq2seq_tokens", "Tokens of the translations")
WAITING = Gauge("seq2seq_waiting_lines", "Lines that wait")
BATCHES = Histogram(
    "seq2seq_batch_lines", "Lines of a batch", buckets=[1, 2, 5, 10, 20, 40, 80, 160]
)


def require_size(size: int, name: str, limit: int) -> None:
    """Raise an error 400 for a part of a request that is larger than its limit."""
    if size > limit:
        raise HTTPException(
            400, f"Invalid request: request ({size}) exceeds {name} limit ({limit})"
        )


class Keys:
    """API keys, and the requests of the last minute by key or address."""

    def __init__(self, keys: Collection[str], rate: int) -> None:
        """keys: without any, everyone may send requests."""
        self.keys, self.rate = [key.encode() for key in keys], rate
        self._times: dict[str, deque[float]] = {}

    @classmethod
    def load(cls, path: Path | None, rate: int) -> Keys:
        """Read a file with a key on each line."""
        keys = [line.strip() for line in read_file(path) if line.strip()] if path else []
        if path and not keys:
            raise UserError(f"{path} has no key: write one key per line")
        return cls(keys, rate)

    def check(self, key: str, address: str) -> None:
        """Raise an error 403 for a wrong key, and 429 for too many requests or wrong keys.

        A request with a key counts for the key. Other requests and wrong keys count for the
        address, so that an address cannot try many keys.
        """
        if self.keys and not key:
            raise HTTPException(403, "Missing API key")
        # Always compares with every key, in constant time.
        known = sum(hmac.compare_digest(key.encode(), own) for own in self.keys) > 0
        now, name = time.monotonic(), key if known else address
        times = self._times[name] = self._times.pop(name, deque(maxlen=self.rate))
        for last in (times, self._times.get(address, times)):
            if self.rate and len(last) == self.rate and last[0] > now - MINUTE:
                raise HTTPException(429, f"Slowdown: {self.rate} per 1 minute")
        times.append(now)
        if len(self._times) > MAX_ADDRESSES:
            del self._times[next(iter(self._times))]
        if self.keys and not known:
            raise HTTPException(403, "Invalid API key")


class BodyLimit:
    """Refuses bodies that are too long, before they are read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count the bytes of its body."""
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MAX_BYTES:
                raise HTTPException(413, f"Request body exceeds {MAX_BYTES} bytes")
            return message

        length = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if length.isdigit() and int(length) > MAX_BYTES:
            read = MAX_BYTES + 1
        await self.app(scope, counted, send)
