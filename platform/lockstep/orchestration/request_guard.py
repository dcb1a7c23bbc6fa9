"""Refuses requests to Dagster's web server that a page of another site may have sent.

The web server has no login and runs each mutation that it is sent, also by a link, a form or a script of any page that
a browser of this machine shows. A browser names the site behind a request, and these names are checked:

| attack | check |
|---|---|
| a name of the attacker that leads to this machine (DNS rebinding) | `Host` is loopback or declared |
| a link, an image, a script | `/graphql` takes no GET |
| a form, a script that sends text | POST is `application/json`, which needs a preflight |
| a script or a websocket of another site, or of another local port | `Origin`, `Sec-Fetch-Site` |
| a frame around the pages, for stolen clicks | `Sec-Fetch-Dest`; `X-Frame-Options` of each answer |

Browsers send `Origin` with each websocket and with JSON of another site, so `Referer` adds nothing. Programs need none
of these headers but `Host`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from lockstep.addresses import is_loopback_name
from lockstep.settings import DEFAULT_PORTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CHECKED = ("host", "origin", "content-type", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest")
"""Headers that a request may have once: of two, Dagster and this guard might read different ones."""
_OWN_SITES = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` for a page of the web server itself, and for an address that the user typed."""
_SHOWN_MAX = 80
"""Length of a value in an answer."""
MISDIRECTED = 421
METHOD = 405
TYPE = 415
FORBIDDEN = 403
MALFORMED = 400
POLICY_VIOLATION = 1008
"""WebSocket close code; before the handshake the server answers 403 instead."""


class WebRequest(msgspec.Struct, frozen=True):
    """The parts of a request that are checked.

    Attributes:
        method: Method of HTTP; empty for a websocket.
        path: Path, decoded.
        headers: Names in lower case and values, in their order.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]

    def find(self, name: str) -> str:
        """The value of a header; empty without it."""
        return next((value for key, value in self.headers if key == name), "")

    def find_repeated(self) -> str:
        """The name of a checked header that is there twice; empty if none is."""
        names = [name for name, _ in self.headers]
        return next((name for name in _CHECKED if names.count(name) > 1), "")

    @property
    def is_of_graphql(self) -> bool:
        """Whether Dagster may take it for a query, below any path prefix."""
        return self.path.rstrip("/").endswith("/graphql")


class Refusal(msgspec.Struct, frozen=True):
    """A refused request.

    Attributes:
        status: Status of the answer.
        problem: The header and its value.
        next_step: Remedy.
    """

    status: int
    problem: str
    next_step: str


def list_hosts(origins: Iterable[str]) -> frozenset[str]:
    """Values of `Host` under which declared origins are reached."""
    hosts = set[str]()
    for origin in origins:
        parts = urlsplit(origin)
        hosts.add(parts.netloc)
        if parts.port is None:
            hosts.add(f"{parts.netloc}:{DEFAULT_PORTS[parts.scheme]}")
    return frozenset(hosts)


def find_refusal(request: WebRequest, origins: frozenset[str]) -> Refusal | None:
    """Why a request is refused; None if it is not.

    Args:
        request: The request.
        origins: Declared origins in addition to loopback (`web.origins` of the settings).
    """
    # Of two values Dagster and this guard might read different ones.
    if name := request.find_repeated():
        return Refusal(MALFORMED, f"header {name} is there twice", "send it once")
    host = request.find("host").lower()
    is_loopback = is_loopback_name(host)
    # A name of an attacker may lead to this machine (DNS rebinding).
    if not is_loopback and host not in list_hosts(origins):
        step = "use the address 127.0.0.1, or add the origin of the proxy to web.origins of the settings"
        return Refusal(MISDIRECTED, f"header Host = {_show(host)} is no name of this web server", step)
    if is_loopback:  # at any port: its own address is no other site
        origins |= {f"http://{host}"}
    return _find_foreign(request, origins) or _find_unsafe(request)


def _find_foreign(request: WebRequest, own: frozenset[str]) -> Refusal | None:
    """Why a request is of another site; None if nothing shows that. If a browser sends `Origin`, that decides."""
    origin = request.find("origin")
    site = request.find("sec-fetch-site")
    step = "use the pages of the web server itself, or add their origin to web.origins of the settings"
    if origin:
        is_own = origin.lower() in own
        if is_own:
            return None
        return Refusal(FORBIDDEN, f"header Origin = {_show(origin)} is another site", step)
    if site and site not in _OWN_SITES and not _is_followed_link(request):
        return Refusal(FORBIDDEN, f"header Sec-Fetch-Site = {_show(site)} is another site", step)
    return None


def _find_unsafe(request: WebRequest) -> Refusal | None:
    """Why a form, a link or a text of a script could be such a request; None if none of them could."""
    # A link or an image of any page sends a GET.
    if request.method in {"GET", "HEAD"}:
        step = "send queries by POST as application/json"
        if request.is_of_graphql:
            return Refusal(METHOD, f"{request.method} of {_show(request.path)}", step)
        return None
    if request.method == "POST":
        kind = request.find("content-type").partition(";")[0].strip().lower()
        step = "send application/json"
        problem = f"header Content-Type = {_show(request.find('content-type'))}"
        # JSON needs a preflight, which a form of another site cannot pass.
        if kind != "application/json":
            return Refusal(TYPE, problem, step)
        return None
    if request.method:
        return Refusal(METHOD, f"method {_show(request.method)}", "use GET, or POST")
    return None


def _is_followed_link(request: WebRequest) -> bool:
    """Whether somebody follows a link to a page, for example from a message to a run."""
    shown_alone = request.find("sec-fetch-mode") == "navigate" and request.find("sec-fetch-dest") == "document"
    return request.method == "GET" and shown_alone


def _show(value: str) -> str:
    """A value of a request, quoted and in ASCII."""
    return ascii(value[:_SHOWN_MAX])


class RequestGuard:
    """ASGI middleware before Dagster's application."""

    def __init__(self, application: ASGIApp, origins: Iterable[str]) -> None:
        """Guard an application.

        Args:
            application: Answers requests that are not refused.
            origins: Declared origins in addition to loopback.
        """
        self._application = application
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self._application(scope, receive, send)
            return
        refusal = find_refusal(_read_request(scope), self._origins)
        if refusal is None:
            await self._application(scope, receive, _forbid_frames(send))
        elif scope["type"] == "websocket":
            await receive()  # the request to connect
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            await _answer(send, refusal)


def _read_request(scope: Scope) -> WebRequest:
    headers = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"])
    return WebRequest(scope.get("method", ""), scope["path"], headers)


def _forbid_frames(send: Send) -> Send:
    """Add the header that keeps the pages out of frames of other sites."""

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"x-frame-options", b"SAMEORIGIN")]}
        await send(message)

    return send_with_header


async def _answer(send: Send, refusal: Refusal) -> None:
    body = f"refused: {refusal.problem}\nnext: {refusal.next_step}\n".encode("ascii")
    kind = (b"content-type", b"text/plain; charset=utf-8")
    length = (b"content-length", b"%d" % len(body))
    headers = [kind, length, (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
