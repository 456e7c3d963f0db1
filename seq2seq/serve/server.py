"""Run a server until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from socket import socket

import uvicorn

from seq2seq.errors import UserError
from seq2seq.serve.app import Server

GRACE = 30
"""Seconds for running requests after a signal to stop."""

logger = logging.getLogger(__name__)


def serve(server: Server, host: str, port: int, proxies: list[str]) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish running requests and return.

    proxies: addresses and networks of proxies whose `X-Forwarded` headers are trusted.
    """
    with suppress(ImportError, ValueError):  # Windows has no such limit
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # A file for each connection. An unlimited macOS refuses more than OPEN_MAX.
        files = 10_240 if most == resource.RLIM_INFINITY else most
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again at its end
    pairs = ", ".join(f"{source} to {target}" for source, target in server.models.collectors)

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            logger.info("serving %s on http://%s:%d", pairs, host, port)

    try:
        asyncio.run(Announced(config).serve())
    except SystemExit:
        raise UserError(f"cannot listen on {host}, port {port}: name another with --port") from None
