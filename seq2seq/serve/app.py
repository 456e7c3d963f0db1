"""The server: LibreTranslate's and DeepL's requests, documents, metrics and a page."""

from __future__ import annotations

import asyncio
import logging
import resource
import secrets
import signal
from contextlib import suppress
from importlib.resources import files
from pathlib import PurePath
from socket import socket
from typing import Any

import uvicorn
import yaml
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from seq2seq.decoding.files import json_fields
from seq2seq.documents.formats import SUFFIXES, decode_document, encode_document
from seq2seq.errors import UserError
from seq2seq.page import page
from seq2seq.serve import limits
from seq2seq.serve.limits import BodyLimit, Keys, require_size
from seq2seq.serve.models import Models, Pair
from seq2seq.serve.requests import (
    Fields,
    endpoint,
    error_response,
    number,
    read_fields,
    translation_options,
)
from seq2seq.text.language import language_name, listed

MAX_FILES = 100
"""Number of translated files that wait for their download."""
GRACE = 30
"""Seconds for running requests after a signal to stop."""

logger = logging.getLogger(__name__)


class Server:
    """Answers requests with the translations of some models."""

    def __init__(self, models: Models, keys: Keys, max_characters: int) -> None:
        """max_characters: length of a text or file."""
        self.models, self.keys, self.max_characters = models, keys, max_characters
        self.files: dict[str, bytes] = {}
        limits.WAITING.set_function(lambda: models.num_waiting)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        posted = {
            "/translate": self.translate,
            "/translate_file": self.translate_file,
            "/detect": self.detect,
            "/v2/translate": self.deepl,
        }
        html = page("server")
        spec = yaml.safe_load(files("seq2seq.serve").joinpath("spec.yaml").read_text("utf-8"))
        routes = [
            *(
                Route(path, endpoint(answer, self.keys), methods=["POST"])
                for path, answer in posted.items()
            ),
            Route("/", lambda _: HTMLResponse(html)),
            Route("/download_file/{name}", self.download),
            Route("/languages", lambda _: JSONResponse(self.models.languages())),
            Route("/v2/languages", self.deepl_languages),
            Route("/frontend/settings", self.settings),
            Route("/health", lambda _: JSONResponse({"status": "ok"})),
            Route("/metrics", lambda _: PlainTextResponse(generate_latest())),
            Route("/spec", lambda _: JSONResponse(spec)),
        ]
        every = ["*"]
        return Starlette(
            routes=routes,
            middleware=[
                Middleware(
                    CORSMiddleware, allow_origins=every, allow_methods=every, allow_headers=every
                ),
                Middleware(BodyLimit),
            ],
            exception_handlers={HTTPException: error_response, Exception: error_response},
        )

    async def translate(self, request: Request, fields: Fields) -> Response:
        """Translate text or HTML, as LibreTranslate."""
        q, form = fields.get("q"), fields.get("format") or "text"
        if form not in ("text", "html"):
            raise HTTPException(400, f"{form} format is not supported")
        texts = self.checked(q, "q")
        pair, detected = self.languages_of(fields, texts)
        given = fields.get("alternatives") or 0
        count = number(given, "alternatives", limits.MAX_ALTERNATIVES)
        answer: dict[str, Any] = {"detectedLanguage": detected} if detected else {}
        if fields.get("options") is not None:
            if count or form == "html":
                raise HTTPException(400, "Invalid request: options exclude alternatives and html")
            options, prefix, decoding = translation_options(fields["options"])
            results = await self.models.translate(texts, pair, options, prefix, **decoding)
            translated = [[result.text] for result in results]
            answer["details"] = [json_fields(result, nbest=True) for result in results]
        elif form == "html":
            documents = await self.models.translate_documents(texts, "html", pair)
            translated = [[document] for document in documents]
        else:
            translated = await self.models.translate_texts(texts, pair, count + 1)
        best, others = [x[0] for x in translated], [x[1:] for x in translated]
        answer["translatedText"] = best if isinstance(q, list) else best[0]
        if count:
            answer["alternatives"] = others if isinstance(q, list) else others[0]
        return JSONResponse(answer)

    async def translate_file(self, request: Request, fields: Fields) -> Response:
        """Translate a document."""
        upload = fields.get("file")
        if not isinstance(upload, UploadFile) or not upload.filename:
            raise HTTPException(400, "Invalid request: missing file parameter")
        suffix = PurePath(upload.filename).suffix.lower()
        if suffix not in (*SUFFIXES, ".txt"):
            raise HTTPException(400, f"Invalid request: file format {suffix} is not supported")
        form = SUFFIXES.get(suffix, "")
        text, encoding = await asyncio.to_thread(decode_document, await upload.read(), form)
        require_size(len(text), "text", self.max_characters)
        pair, _ = self.languages_of(fields, [text])
        if form:
            [translated] = await self.models.translate_documents([text], form, pair)
        else:
            [[translated]] = await self.models.translate_texts([text], pair)
        content = await asyncio.to_thread(encode_document, translated, encoding, form)
        name = f"{secrets.token_urlsafe(16)}{suffix}"
        self.files[name] = content
        if len(self.files) > MAX_FILES:
            del self.files[next(iter(self.files))]
        return JSONResponse({"translatedFileUrl": f"{request.base_url}download_file/{name}"})

    async def download(self, request: Request) -> Response:
        """Send a translated file."""
        name = request.path_params["name"]
        if name not in self.files:
            raise HTTPException(404, "File not found")
        file = f"translation{PurePath(name).suffix}"
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Response(self.files[name], media_type="application/octet-stream", headers=headers)

    async def detect(self, request: Request, fields: Fields) -> Response:
        """Detect the language of a text."""
        return JSONResponse(self.models.detect(" ".join(self.checked(fields.get("q"), "q"))))

    async def deepl(self, request: Request, fields: Fields) -> Response:
        """Translate text, as DeepL."""
        texts = self.checked(fields.get("text"), "text")
        target = str(fields.get("target_lang") or "").lower()
        if not any(self.models.route(source, target) for source in self.models.sources):
            target = target.split("-")[0]  # such as EN-GB
        languages = {"source": fields.get("source_lang") or "auto", "target": target}
        pair, _ = self.languages_of(languages, texts)
        if fields.get("tag_handling") in ("html", "xml"):  # the texts may be parts of documents
            translated = await self.models.translate_documents(texts, "html", pair)
        else:
            translated = [x[0] for x in await self.models.translate_texts(texts, pair)]
        source = pair[0].upper()
        answers = [
            {"detected_source_language": source, "text": text, "billed_characters": len(given)}
            for given, text in zip(texts, translated, strict=True)
        ]
        return JSONResponse({"translations": answers})

    async def deepl_languages(self, request: Request) -> Response:
        """Return the source languages, or with `type=target` the target languages, as DeepL."""
        side = int((await read_fields(request)).get("type") == "target")
        codes = dict.fromkeys(pair[side] for pair in self.models.hops)
        return JSONResponse([{"language": x.upper(), "name": language_name(x)} for x in codes])

    async def settings(self, request: Request) -> Response:
        """Return settings for clients."""
        languages = self.models.languages()
        first = languages[0]
        target = next(other for other in languages if other["code"] == first["targets"][0])
        return JSONResponse(
            {
                "apiKeys": bool(self.keys.keys),
                "keyRequired": bool(self.keys.keys),
                "charLimit": self.max_characters,
                "frontendTimeout": 300,
                "language": {
                    "source": {key: first[key] for key in ("code", "name")},
                    "target": {key: target[key] for key in ("code", "name")},
                },
                "suggestions": False,
                "supportedFilesFormat": [*SUFFIXES, ".txt"],
            }
        )

    def checked(self, value: Any, name: str) -> list[str]:
        """Return a text, or a list of texts, within the limits; else raises an error 400."""
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts) or not any(texts):
            raise HTTPException(400, f"Invalid request: missing {name} parameter")
        require_size(len(texts), "batch", limits.MAX_TEXTS)
        require_size(max(map(len, texts)), "text", self.max_characters)
        return texts

    def languages_of(self, fields: Fields, texts: list[str]) -> tuple[Pair, dict[str, Any] | None]:
        """Return source and target language, and the detected source if it was not given."""
        given = []
        for name in ("source", "target"):
            if not isinstance(value := fields.get(name), str) or not value:
                raise HTTPException(400, f"Invalid request: missing {name} parameter")
            given.append(value.lower())
        (source, target), detected = given, None
        if source == "auto":
            [detected] = self.models.detect(" ".join(texts), target)
            source = detected["language"]
        for code, known in ((source, self.models.sources), (target, self.models.targets(source))):
            if code not in known:
                raise HTTPException(400, f"{code} is not supported")
        return (source, target), detected


def serve(server: Server, host: str, port: int, proxies: list[str]) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish running requests and return.

    proxies: addresses and networks of proxies whose `X-Forwarded` headers are trusted.
    """
    with suppress(ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # A file for each connection. An unlimited macOS refuses more than OPEN_MAX.
        connections = 10_240 if most == resource.RLIM_INFINITY else most
        resource.setrlimit(resource.RLIMIT_NOFILE, (connections, most))
    config = uvicorn.Config(
        server.app(),
        host=host,
        port=port,
        log_level="critical",
        access_log=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=GRACE,
        server_header=False,
        forwarded_allow_ips=proxies,  # other clients could choose their address
    )
    for sent in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sent, lambda *_: None)  # uvicorn raises the signal again at its end
    pairs = listed(f"{source} to {target}" for source, target in server.models.hops)

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            logger.info("serving %s on http://%s:%d", pairs, host, port)

    try:
        asyncio.run(Announced(config).serve())
    except SystemExit:
        raise UserError(f"cannot listen on {host}, port {port}: name another with --port") from None
