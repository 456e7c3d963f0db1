"""Fields of requests, and answers to errors."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from seq2seq.errors import UnfinishedError, UserError
from seq2seq.serve.limits import Keys
from seq2seq.serve.metrics import Metrics

Fields = Mapping[str, Any]
Answer = Callable[[Request, Fields], Awaitable[Response]]

logger = logging.getLogger(__name__)


def endpoint(
    answer: Answer, keys: Keys, metrics: Metrics, max_seconds: float
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that reads and checks requests, limits their time and counts them."""

    async def counted(request: Request) -> Response:
        start, status = time.monotonic(), 500
        try:
            response = await within_time(request)
            status = response.status_code
            return response
        except HTTPException as error:
            status = error.status_code
            raise
        except UnfinishedError as error:
            status = 503
            logger.error("%s", error)
            raise HTTPException(503, "The model has changed: restart the server") from None
        except UserError as error:  # an invalid document or option
            status = 400
            raise HTTPException(400, f"Invalid request: {error}") from None
        finally:
            metrics.requests.labels(request.url.path, str(status)).inc()
            metrics.latency.observe(time.monotonic() - start)

    async def within_time(request: Request) -> Response:
        end = time.monotonic() + max_seconds
        address = request.client.host if request.client else ""
        header = request.headers.get("authorization", "")
        key = request.query_params.get("api_key") or header.partition("DeepL-Auth-Key ")[2]
        if key or not keys.keys:  # before the body is read
            keys.check(key, address)
        try:
            fields = await asyncio.wait_for(read_fields(request), max_seconds)
        except asyncio.TimeoutError:
            raise HTTPException(408, "The request was too slow") from None
        if keys.keys and not key:
            keys.check(str(fields.get("api_key") or fields.get("auth_key") or ""), address)
        work = asyncio.ensure_future(answer(request, fields))
        try:
            while not (await asyncio.wait({work}, timeout=0.25))[0]:
                if time.monotonic() > end:
                    raise HTTPException(503, "The translation took too long")
                if await request.is_disconnected():
                    raise HTTPException(499, "The client has gone away")
            return work.result()
        finally:
            work.cancel()

    return counted


async def read_fields(request: Request) -> Fields:
    """Return the fields of the query and of a form or JSON object; a list for repeated fields.

    A field of the body replaces the same field of the query.
    """
    sources: list[ImmutableMultiDict[str, Any]] = [request.query_params]
    fields: dict[str, Any] = {}
    given: Any = {}
    try:
        if "form" in request.headers.get("content-type", ""):
            sources.append(await request.form(max_files=1))
        elif await request.body():
            given = await request.json()
        for source in sources:
            values: dict[str, list[Any]] = {}
            for name, value in source.multi_items():
                values.setdefault(name, []).append(value)
            fields |= {name: x if len(x) > 1 else x[0] for name, x in values.items()}
        fields = fields | given  # TypeError unless it is an object
        json.dumps(fields, ensure_ascii=False, default=str).encode()  # fails for lone surrogates
    except (TypeError, ValueError, RecursionError):
        raise HTTPException(400, "Invalid request: the body is not a JSON object") from None
    except ClientDisconnect:
        raise HTTPException(499, "The client has gone away") from None
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
    require_size(int(value), name, limit)
    return int(value)


def require_size(size: int, name: str, limit: int) -> None:
    """Raise an error 400 for a part of a request that is larger than its limit."""
    if size > limit:
        raise HTTPException(
            400, f"Invalid request: request ({size}) exceeds {name} limit ({limit})"
        )


def on_http_error(request: Request, error: Exception) -> Response:
    """Answer with `{"error": ...}`, as LibreTranslate does; DeepL's clients read `message`."""
    assert isinstance(error, HTTPException)
    name = "message" if request.url.path.startswith("/v2/") else "error"
    return JSONResponse({name: error.detail}, error.status_code)


def on_error(request: Request, error: Exception) -> Response:
    """Answer to a failure of the server, and log its place.

    The message of the error is not logged: it may quote a text.
    """
    name, place = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s %s: %s\n%s", request.method, request.url.path, name, place.rstrip())
    return JSONResponse({"error": f"Cannot translate text: {name}"}, 500)


HANDLERS = {HTTPException: on_http_error, Exception: on_error}
