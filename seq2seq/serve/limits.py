"""Limits of a server: sizes, waiting lines, time, keys and rates."""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError

MINUTE = 60.0


@dataclass(frozen=True)
class Limits:
    """What a request may ask for."""

    max_bytes: int = 10_000_000
    """Size of a request's body."""
    max_elements: int = 1_000
    """Number of texts in a request."""
    max_characters: int = 100_000
    """Length of a text."""
    max_alternatives: int = 9
    max_waiting: int = 10_000
    """Number of lines that wait for their translation. Further requests are refused."""
    max_seconds: float = 120.0
    """Time to receive and to answer a request."""


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
        if len(self._times) > 10_000:  # addresses
            del self._times[next(iter(self._times))]
        if self.keys and not known:
            raise HTTPException(403, "Invalid API key")


class BodyLimit:
    """Refuses bodies that are too long, before they are read."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count the bytes of its body."""
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.max_bytes:
                raise HTTPException(413, f"Request body exceeds {self.max_bytes} bytes")
            return message

        length = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_bytes:
            read = self.max_bytes + 1
        await self.app(scope, counted, send)
