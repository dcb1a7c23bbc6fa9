"""Requests to a receiver that may fail in any way, at an address that is a secret: it is in no text of a problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import SHUT_RDWR
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import msgspec
from typing_extensions import override

from lockstep.time_limit import describe_silence, run_within

SCHEMES = ("http://", "https://")
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})\b")
"""The error of http.client if a proxy refuses CONNECT."""


class RequestOutcome(msgspec.Struct, frozen=True):
    """The outcome of a request.

    Attributes:
        status: Status of the answer; 0 without an answer.
        problem: Why the receiver did not take it; empty if it answered 2xx.
        retry_after: Header Retry-After of the answer; empty without one.
        is_of_proxy: A proxy answered, and the receiver got nothing.
    """

    status: int
    problem: str
    retry_after: str = ""
    is_of_proxy: bool = False


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would repeat the request, as a GET, at an address that no setting names."""

    @override
    def redirect_request(self, *_: object) -> None:
        return None


class _Connections:
    """Opens connections, and ends them at the time limit: each byte of a slow answer restarts the socket's timeout."""

    def __init__(self) -> None:
        self._opened = list[HTTPConnection]()
        self._has_ended = False

    def open_plain(self, host: str, **options: Any) -> HTTPConnection:
        """A connection without TLS."""
        return self._keep(HTTPConnection(host, **options))

    def open_tls(self, host: str, **options: Any) -> HTTPConnection:
        """A connection with TLS, by the certificates of this machine."""
        return self._keep(HTTPSConnection(host, **options))

    def end(self) -> None:
        """End all: a thread that waits for one ends, too, and a thread that still connects sends nothing."""
        self._has_ended = True
        for connection in self._opened:
            with suppress(OSError, AttributeError):  # not connected yet, or closed
                connection.sock.shutdown(SHUT_RDWR)  # unlike `close`, it ends a read that waits

    def _keep(self, connection: HTTPConnection) -> HTTPConnection:
        connect = connection.connect

        def connect_in_time() -> None:
            connect()
            if self._has_ended:
                connection.close()
                raise TimeoutError

        connection.connect = connect_in_time  # type: ignore[method-assign]  # of this connection alone
        self._opened.append(connection)
        return connection


class _PlainHandler(HTTPHandler):
    def __init__(self, connect: Callable[..., HTTPConnection]) -> None:
        super().__init__()
        self._connect: Any = connect

    @override
    def http_open(self, req: Request) -> Any:
        return self.do_open(self._connect, req)


class _TlsHandler(HTTPSHandler):
    def __init__(self, connect: Callable[..., HTTPConnection]) -> None:
        super().__init__()
        self._connect: Any = connect

    @override
    def https_open(self, req: Request) -> Any:
        return self.do_open(self._connect, req)


def send_json(address: str, body: bytes, seconds: float, headers: Mapping[str, str] | None = None) -> RequestOutcome:
    """Post JSON to an address; a redirect is not followed, and the body of the answer is not read.

    Args:
        address: An address of http:// or https://.
        body: The JSON.
        seconds: Time for the whole request.
        headers: Further headers.
    """
    connections = _Connections()
    opener = build_opener(_NoRedirect, _PlainHandler(connections.open_plain), _TlsHandler(connections.open_tls))

    def send() -> RequestOutcome:
        try:
            all_headers = {"Content-Type": "application/json"} | dict(headers or {})
            with opener.open(Request(address, body, all_headers), timeout=seconds) as answer:  # noqa: S310  # its scheme is checked by callers
                return _judge(answer.status, "")
        except HTTPError as error:
            with error:
                return _judge(error.code, error.headers.get("Retry-After", ""))
        except (OSError, HTTPException, ValueError) as error:  # their texts may hold the address
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                return RequestOutcome(0, describe_silence("it", seconds))
            tunnel = _TUNNEL.match(str(reason))
            if tunnel is not None:
                return RequestOutcome(int(tunnel[1]), f"its proxy answered {tunnel[1]}", is_of_proxy=True)
            return RequestOutcome(0, f"it could not be reached ({type(reason).__name__})")

    try:
        return run_within(seconds, send)
    except TimeoutError:
        connections.end()
        return RequestOutcome(0, describe_silence("it", seconds))


def _judge(status: int, retry_after: str) -> RequestOutcome:
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return RequestOutcome(status, f"its proxy answered {status}", is_of_proxy=True)
    is_taken = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
    return RequestOutcome(status, "" if is_taken else f"it answered {status}", retry_after)
