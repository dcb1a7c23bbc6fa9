"""Serves the page and its facts: static files, and a stream of server-sent events for each view. Read-only.

The page has no login, as Dagster's has none: it answers names of loopback, and of the origins in `web.origins` for a
proxy with a login before it. It takes GET alone, loads nothing from elsewhere, and no other site may frame it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep.errors import EnvironmentProblem
from lockstep.features.console.watcher import ConsoleWatcher
from lockstep.operations.quarantine import Place
from lockstep.orchestration.request_guard import RequestGuard

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("console.js", "draw.js", "format.js", "heat.js", "overview.js", "parts.js", "stream.js")
FILES = {
    "index.html": "text/html; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    **dict.fromkeys(SCRIPTS, "text/javascript; charset=utf-8"),
}
"""The files of the page, with their types; no other is served."""
PUSH_SECONDS = 0.5
"""Time between two comparisons of the facts with those that a client has."""
SILENT_SECONDS = 15.0
"""A client without news for so long gets a comment: proxies end silent connections, and a client that is gone
is noticed."""
CLIENTS_MAX = 200
"""Connections at once; each one is compared twice a second."""
CLOSE_SECONDS = 2
"""Time for connections to end after a signal."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class ConsoleServer:
    """The web server of the page, which listens from its start on."""

    def __init__(self, watcher: ConsoleWatcher, host: str, port: int, origins: tuple[str, ...]) -> None:
        """Listen on an address.

        Args:
            watcher: The facts of the streams.
            host: Address to listen on.
            port: Port; 0 for a free one.
            origins: Origins of a proxy, in addition to loopback.

        Raises:
            EnvironmentProblem: The port cannot be used.
        """
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            make_application(watcher, origins),
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=CLIENTS_MAX,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def serve(self) -> None:
        """Serve until a signal, or `stop`."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `serve` from another thread."""
        self._server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise EnvironmentProblem(
            f"port {port} of {host} cannot be used: {error.strerror}", next_step="lockstep console --port PORT"
        ) from error
    return listening


def make_application(watcher: ConsoleWatcher, origins: tuple[str, ...]) -> ASGIApp:
    """The guarded application of the page."""

    @asynccontextmanager
    async def poll_while_serving(_: Starlette) -> AsyncIterator[None]:
        watcher.start()
        yield
        await asyncio.to_thread(watcher.close)

    async def push_all(request: Request) -> Response:
        return _push(request, watcher.watching(), watcher.list_cards)

    async def push_one(request: Request) -> Response:
        name = request.path_params["stream"]
        if not watcher.has(name):
            return PlainTextResponse("no such stream is declared\n", status_code=404)
        return _push(request, watcher.watching(name), lambda now: watcher.show(name, now))

    async def show_message(request: Request) -> Response:
        text = await asyncio.to_thread(_show_message, watcher, request.path_params)
        return PlainTextResponse(text, status_code=404 if text is None else 200)

    routes = [
        Route("/", _send_page),
        Route("/streams/{stream}", _send_page),
        Route("/static/{file}", _send_file),
        Route("/api/events", push_all),
        Route("/api/streams/{stream}/events", push_one),
        Route("/api/streams/{stream}/quarantine/{topic}/{partition:int}/{offset:int}", show_message),
    ]
    application = Starlette(routes=routes, lifespan=poll_while_serving)
    return RequestGuard(SafeHeaders(application), origins)


def _show_message(watcher: ConsoleWatcher, place: Mapping[str, Any]) -> str | None:
    """A message in quarantine as text; None for a stream that is not declared."""
    if not watcher.has(place["stream"]):
        return None
    return watcher.show_message(place["stream"], Place(place["topic"], place["partition"], place["offset"]))


async def _send_page(_: Request) -> Response:
    return _send("index.html")


async def _send_file(request: Request) -> Response:
    return _send(request.path_params["file"])


def _send(name: str) -> Response:
    if name not in FILES:
        return PlainTextResponse("no such page\n", status_code=404)
    return FileResponse(STATIC / name, media_type=FILES[name])


def _push(
    request: Request, watching: AbstractContextManager[None], show: Callable[[float], object]
) -> StreamingResponse:
    """Push a view whenever it changes."""

    async def events() -> AsyncIterator[bytes]:
        sent = b""
        sent_at = 0.0
        with watching:
            while not await request.is_disconnected():
                now = time.time()
                view = msgspec.json.encode(show(now))
                if view != sent:
                    sent = view
                    sent_at = time.monotonic()
                    yield b'data: {"now":%.3f,"view":%b}\n\n' % (now, view)
                elif time.monotonic() - sent_at > SILENT_SECONDS:
                    sent_at = time.monotonic()
                    yield b": \n\n"
                await asyncio.sleep(PUSH_SECONDS)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


class SafeHeaders:
    """Adds the headers that keep a browser from loading or showing anything else."""

    def __init__(self, application: ASGIApp, headers: Mapping[str, str] = HEADERS) -> None:
        self._application = application
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._application(scope, receive, send_safely)
