"""Requests: their fields and options, the time to answer them, and answers to errors."""

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

from seq2seq.decoding.terms import Glossary, Term
from seq2seq.decoding.translation import Options
from seq2seq.errors import UnfinishedError, UserError
from seq2seq.serve import limits
from seq2seq.serve.limits import Keys

OPTIONS = "alignment", "beam", "glossary", "nbest", "paragraphs", "prefix", "tokens"
"""Options of `/translate` that only this server has."""
Fields = Mapping[str, Any]
Answer = Callable[[Request, Fields], Awaitable[Response]]

logger = logging.getLogger(__name__)


def endpoint(answer: Answer, keys: Keys) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that reads and checks requests, limits their time and counts them."""

    async def counted(request: Request) -> Response:
        start = time.monotonic()
        try:
            response = await within_time(request)
        except Exception as error:
            response = error_response(request, error)
        limits.REQUESTS.labels(request.url.path, str(response.status_code)).inc()
        limits.LATENCY.observe(time.monotonic() - start)
        return response

    async def within_time(request: Request) -> Response:
        end = time.monotonic() + limits.MAX_SECONDS
        address = request.client.host if request.client else ""
        header = request.headers.get("authorization", "")
        key = request.query_params.get("api_key") or header.partition("DeepL-Auth-Key ")[2]
        if key or not keys.keys:  # before the body is read
            keys.check(key, address)
        try:
            fields = await asyncio.wait_for(read_fields(request), limits.MAX_SECONDS)
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
            values = {name: source.getlist(name) for name in source}
            fields |= {name: x if len(x) > 1 else x[0] for name, x in values.items()}
        fields = fields | given  # TypeError unless it is an object
        json.dumps(fields, ensure_ascii=False, default=str).encode()  # fails for lone surrogates
    except (TypeError, ValueError, RecursionError):
        raise HTTPException(400, "Invalid request: the body is not a JSON object") from None
    except ClientDisconnect:
        raise HTTPException(499, "The client has gone away") from None
    return fields


def translation_options(given: Any) -> tuple[Options, str, dict[str, Any]]:
    """Return options, prefix and changed decoding; raises an error 400 otherwise."""
    if not isinstance(given, dict) or given.keys() - set(OPTIONS):
        names = ", ".join(OPTIONS)
        raise HTTPException(400, f"Invalid request: options must be an object of {names}")
    terms, prefix = given.get("glossary") or [], given.get("prefix") or ""
    are_pairs = isinstance(terms, list) and all(
        isinstance(term, list)
        and len(term) == 2
        and all(isinstance(text, str) and text.strip() for text in term)
        for term in terms
    )
    if not are_pairs or not isinstance(prefix, str) or len(terms) > limits.MAX_TERMS:
        raise HTTPException(
            400,
            f"Invalid request: glossary needs at most {limits.MAX_TERMS} [source, target] pairs, "
            "and prefix a string",
        )
    options = Options(
        nbest=max(1, number(given.get("nbest", 1), "nbest", limits.MAX_ALTERNATIVES + 1)),
        tokens=bool(given.get("tokens")),
        alignment=bool(given.get("alignment")),
        glossary=Glossary([Term(b, a) for a, b in terms]) if terms else None,
    )
    beam = number(given.get("beam", 0), "beam", 100)
    return options, prefix, {"beam": beam, "paragraphs": bool(given.get("paragraphs"))}


def number(value: Any, name: str, limit: int) -> int:
    """Return a whole number from 0 to `limit`; raises an error 400 for anything else."""
    try:
        if isinstance(value, bool) or int(value) != float(value) or int(value) < 0:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise HTTPException(400, f"Invalid request: {name} must be a whole number") from None
    limits.require_size(int(value), name, limit)
    return int(value)


def error_response(request: Request, error: Exception) -> Response:
    """Return `{"error": ...}`, as LibreTranslate does; DeepL's clients read `message`."""
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
    elif isinstance(error, UnfinishedError):
        logger.error("%s", error)
        status, message = 503, "The model has changed: restart the server"
    elif isinstance(error, UserError):  # an invalid document or option
        status, message = 400, f"Invalid request: {error}"
    else:  # the message of the error is neither sent nor logged: it may quote a text
        name, place = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
        logger.error("%s %s: %s\n%s", request.method, request.url.path, name, place.rstrip())
        status, message = 500, f"Cannot translate text: {name}"
    key = "message" if request.url.path.startswith("/v2/") else "error"
    return JSONResponse({key: message}, status)
