"""Requests as browsers send them: the methods, paths and headers that a page can choose by the Fetch standard.

A page of another site chooses the kind of the request, the path, the type of a body and the referrer policy. It cannot
choose `Host`, `Origin` and `Sec-Fetch-*`, nor send a body of JSON without a preflight.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

PATHS = ("/graphql", "/graphql/", "/report_asset_materialization/forged", "/report_asset_check/forged", "/", "/runs")
SIMPLE_TYPES = (
    "",
    "text/plain",
    "text/plain; application/json",
    "text/plain;charset=application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
)
"""Types that a script may send without a preflight; the third passes for JSON in a search for this word."""
FORM_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")


class Kind(Enum):
    """How a page makes a browser send a request."""

    LINK = "a link that somebody follows"
    IMAGE = "an image or a script"
    FRAME = "a frame"
    FORM = "a form"
    SIMPLE_POST = "a script that sends text"
    SIMPLE_GET = "a script that reads"
    JSON_POST = "a script that sends JSON"
    SOCKET = "a websocket"


class Age(Enum):
    """The headers about the page that a browser sends."""

    NOW = "Origin and Sec-Fetch-*"
    OLDER = "Origin"
    OLD = "Origin of scripts and websockets only"


@dataclass(frozen=True)
class BrowserRequest:
    """A request and its origin.

    Attributes:
        kind: How it was made.
        method: Method; empty for a websocket.
        path: Path.
        headers: Names and values, without `Host`.
        host: Value of `Host`.
        page: Origin of the page; "null" for a file or a frame without rights.
        is_own: Whether the page belongs to the web server.
    """

    kind: Kind
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    host: str
    page: str
    is_own: bool


def list_requests(page: str, target: str, *, is_own: bool) -> Iterator[BrowserRequest]:
    """List all requests of a page to a web server.

    Args:
        page: Origin of the page.
        target: Origin of the web server, as the page names it.
        is_own: Whether the page belongs to the web server.
    """
    for kind, path, age, tells in product(Kind, PATHS, Age, ("", page, f"{page}/some/page")):
        for method, kind_of_body in _list_forms(kind, page == target):
            headers = dict(_tell(kind, method, page, target, age))
            if kind_of_body:
                headers["Content-Type"] = kind_of_body
            if tells and page != "null":
                headers["Referer"] = tells
            host = urlsplit(target).netloc
            yield BrowserRequest(kind, method, path, tuple(headers.items()), host, page, is_own)


def _list_forms(kind: Kind, same: bool) -> list[tuple[str, str]]:  # noqa: FBT001  # of a pure helper
    """List methods and types of the body."""
    if kind is Kind.SOCKET:
        return [("", "")]
    if kind is Kind.FORM:
        return [("POST", each) for each in FORM_TYPES]
    if kind is Kind.SIMPLE_POST:
        return [("POST", each) for each in SIMPLE_TYPES]
    if kind is Kind.JSON_POST:  # from another origin, a browser sends a preflight, which the server refuses
        return (
            [("POST", "application/json"), ("POST", "application/json; charset=utf-8")] if same else [("OPTIONS", "")]
        )
    return [("GET", "")]


def _tell(kind: Kind, method: str, page: str, target: str, age: Age) -> Iterator[tuple[str, str]]:
    """Return the headers about the page."""
    by_script = kind in {Kind.SIMPLE_POST, Kind.SIMPLE_GET, Kind.JSON_POST, Kind.SOCKET}
    with_origin = by_script if age is Age.OLD else by_script or method == "POST"
    if with_origin and not (method == "GET" and page == target):
        yield "Origin", page
    if age is Age.NOW:
        yield "Sec-Fetch-Site", _name_relation(page, target)
        navigates = kind in {Kind.LINK, Kind.FRAME, Kind.FORM}
        yield "Sec-Fetch-Mode", "navigate" if navigates else "websocket" if kind is Kind.SOCKET else "no-cors"
        dest = {Kind.LINK: "document", Kind.FORM: "document", Kind.FRAME: "iframe", Kind.IMAGE: "image"}
        yield "Sec-Fetch-Dest", dest.get(kind, "empty")
    yield "Accept", "text/html" if kind in {Kind.LINK, Kind.FRAME, Kind.FORM} else "*/*"


def _name_relation(page: str, target: str) -> str:
    if page == target:
        return "same-origin"
    of_page = urlsplit(page)
    of_target = urlsplit(target)
    is_near = of_page.hostname == of_target.hostname and of_page.scheme == of_target.scheme
    return "same-site" if is_near else "cross-site"
