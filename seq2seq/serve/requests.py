"""Fields of requests, and answers to errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from seq2seq.errors import UserError
from seq2seq.serve.limits import Keys
from seq2seq.serve.metrics import Metrics

Fields = Mapping[str, Any]
Answer = Callable[[Request, Fields], Awaitable[Response]]


class Endpoints:
    """Makes endpoints of functions: reads and checks requests, limits their time, counts them."""

    def __init__(self, keys: Keys, metrics: Metrics, max_seconds: float) -> None:
        self.keys, self.metrics, self.max_seconds = keys, metrics, max_seconds

    def __call__(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a function."""

        async def endpoint(request: Request) -> Response:
            start, status = time.monotonic(), 500
            try:
                response = await self._within_time(request, answer)
                status = response.status_code
                return response
            except HTTPException as error:
                status = error.status_code
                raise
            except UserError as error:  # an invalid document or option
                status = 400
                raise HTTPException(400, f"Invalid request: {error}") from None
            finally:
                self.metrics.requests.labels(request.url.path, str(status)).inc()
                self.metrics.latency.observe(time.monotonic() - start)

        return endpoint

    async def _within_time(self, request: Request, answer: Answer) -> Response:
        """Answer a request, unless it takes too long or its client goes away."""
        end = time.monotonic() + self.max_seconds
        try:
            fields = await asyncio.wait_for(read_fields(request), self.max_seconds)
        except asyncio.TimeoutError:
            raise HTTPException(408, "The request was too slow") from None
        authorization = request.headers.get("authorization", "").removeprefix("DeepL-Auth-Key ")
        key = str(fields.get("api_key") or fields.get("auth_key") or authorization)
        self.keys.check(key, request.client.host if request.client else "")
        work = asyncio.ensure_future(answer(request, fields))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=0.25)
                if work.done():
                    break
                if time.monotonic() > end:
                    raise HTTPException(503, "The translation took too long")
                if await request.is_disconnected():
                    raise HTTPException(499, "The client has gone away")
            return work.result()
        finally:
            work.cancel()


async def read_fields(request: Request) -> Fields:
    """Return the fields of a JSON object or a form. Repeated fields of a form become a list."""
    try:
        if "form" in request.headers.get("content-type", ""):
            form = await request.form(max_files=1)
            lists = {name: form.getlist(name) for name in form}
            return {name: x if len(x) > 1 else x[0] for name, x in lists.items()}
        fields = await request.json()
        json.dumps(fields, ensure_ascii=False).encode()  # fails for lone surrogates
    except (ValueError, RecursionError):
        raise HTTPException(400, "Invalid request: the body is not JSON") from None
    except ClientDisconnect:
        raise HTTPException(499, "The client has gone away") from None
    if not isinstance(fields, dict):
        raise HTTPException(400, "Invalid request: the body is not a JSON object")
    return fields


def is_text(value: Any) -> bool:
    """Return whether a value is a string."""
    return isinstance(value, str)


def number(value: Any, name: str, limit: int) -> int:
    """Return a whole number from 0 to `limit`; raises an error 400 for anything else."""
    try:
        if isinstance(value, bool) or int(value) != float(value) or int(value) < 0:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise HTTPException(400, f"Invalid request: {name} must be a whole number") from None
    if int(value) > limit:
        raise HTTPException(
            400, f"Invalid request: request ({int(value)}) exceeds {name} limit ({limit})"
        )
    return int(value)


def on_http_error(request: Request, error: Exception) -> Response:
    """Answer with `{"error": ...}`, as LibreTranslate does; DeepL's clients read `message`."""
    assert isinstance(error, HTTPException)
    name = "message" if request.url.path.startswith("/v2/") else "error"
    return JSONResponse({name: error.detail}, error.status_code)


def on_error(_: Request, error: Exception) -> Response:
    """Answer to a failure of the server."""
    return JSONResponse({"error": f"Cannot translate text: {type(error).__name__}"}, 500)
