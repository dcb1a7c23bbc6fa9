"""The requests that the guard before Dagster's web server accepts, of all that a page can make a browser send."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import ValidationError

from lockstep.orchestration.request_guard import WebRequest, find_refusal
from lockstep.settings import WebSettings
from tests.support.browser_requests import PATHS, BrowserRequest, Kind, list_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

DECLARED = frozenset({"https://console.example", "https://streams.example:8443"})
OWN = (
    *("http://127.0.0.1:3000", "http://localhost:3000", "http://[::1]:3000", "http://127.0.0.1:41234"),
    *DECLARED,
)
FOREIGN = (
    *("https://attacker.example", "http://127.0.0.1:8888", "http://localhost:3001", "http://[::1]:80", "null"),
    *("http://console.example", "https://console.example:444", "https://console.example.attacker.example"),
    *("http://127.0.0.1.attacker.example:3000", "https://xconsole.example", "http://0.0.0.0:3000"),
)
REBOUND = (
    *("http://attacker.example:3000", "http://127.0.0.1.attacker.example:3000", "http://0.0.0.0:3000"),
    *("http://localhost.attacker.example:3000", "http://127.0.0.1.:3000", "http://192.0.2.1:3000"),
    *("http://console.example:3000", "http://2130706433:3000", "http://attacker.example:localhost"),
)
"""Names that an attacker directs to this machine: page and web server have one origin for the browser."""


def judge(request: BrowserRequest) -> bool:
    """Return whether the guard refuses a request."""
    headers = [("host", request.host), *((name.lower(), value) for name, value in request.headers)]
    return find_refusal(WebRequest(request.method, request.path, tuple(headers)), DECLARED) is not None


def list_foreign() -> Iterator[BrowserRequest]:
    for page, target in product(FOREIGN, OWN):
        if page not in OWN:
            yield from list_requests(page, target, is_own=False)
    for name in REBOUND:
        yield from list_requests(name, name, is_own=False)


def test_no_page_of_another_site_has_anything_changed() -> None:
    """Only a GET without effects passes, and from a browser that sends its site, only a link that a person follows."""
    passed = [request for request in list_foreign() if not judge(request)]
    assert {request.method for request in passed} == {"GET"}
    assert not any("graphql" in request.path for request in passed)
    assert not any(request.host in {name.partition("//")[2] for name in REBOUND} for request in passed)
    told = [request for request in passed if "Sec-Fetch-Site" in dict(request.headers)]
    assert {request.kind for request in told} == {Kind.LINK}


def test_every_page_of_the_web_server_itself_works() -> None:
    """Its pages are read by GET, and use JSON and a websocket for requests."""
    used = {Kind.LINK, Kind.IMAGE, Kind.SIMPLE_GET, Kind.JSON_POST, Kind.SOCKET}
    for origin in OWN:
        requests = [each for each in list_requests(origin, origin, is_own=True) if each.kind in used]
        refused = {(each.method, each.path) for each in requests if judge(each)}
        assert refused == {("GET", "/graphql"), ("GET", "/graphql/")}


def test_a_link_from_a_message_to_a_run_is_followed() -> None:
    for origin in OWN:
        links = [each for each in list_requests("https://chat.example", origin, is_own=False) if each.kind is Kind.LINK]
        assert {each.path for each in links if not judge(each)} == {path for path in PATHS if "graphql" not in path}


@pytest.mark.parametrize("site", ["same-origin", "same-site", "cross-site"])
def test_a_websocket_of_its_own_pages_works_whatever_a_browser_makes_of_its_scheme(site: str) -> None:
    headers = (("host", "localhost:3000"), ("origin", "http://localhost:3000"), ("sec-fetch-site", site))
    assert find_refusal(WebRequest("", "/graphql", headers), frozenset()) is None


def test_a_program_that_is_no_browser_asks_by_json_only() -> None:
    kinds = (
        "",
        "text/plain",
        "text/plain; application/json",
        "application/graphql",
        "application/json",
        "APPLICATION/JSON;charset=utf-8",
    )
    for method, kind in product(("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"), kinds):
        headers = (("host", "127.0.0.1:3000"), *((("content-type", kind),) if kind else ()))
        passes = find_refusal(WebRequest(method, "/graphql", headers), frozenset()) is None
        assert passes == (method == "POST" and kind.lower().startswith("application/json")), (method, kind)


@pytest.mark.parametrize("name", ["host", "origin", "content-type", "sec-fetch-site"])
def test_a_header_that_is_there_twice_is_refused(name: str) -> None:
    good = {"host": "127.0.0.1:3000", "origin": "http://127.0.0.1:3000", "content-type": "application/json"}
    both = {**good, "sec-fetch-site": "same-origin"}
    request = WebRequest("POST", "/graphql", tuple(both.items()))
    assert find_refusal(request, frozenset()) is None
    refusal = find_refusal(WebRequest("POST", "/graphql", (*both.items(), (name, both[name]))), frozenset())
    assert refusal is not None
    assert refusal.problem == f"header {name} is there twice"


@given(some.text(), some.text(), some.sampled_from(["", "GET", "POST", "PUT"]), some.text())
def test_any_values_are_judged_without_an_error_and_foreign_names_never_pass(
    host: str, origin: str, method: str, path: str
) -> None:
    headers = (("host", host), ("origin", origin), ("content-type", "application/json"))
    refusal = find_refusal(WebRequest(method, path, headers), DECLARED)
    known = {name.partition("//")[2] for name in DECLARED} | {"console.example:443"}
    if host.lower() not in known and not host.lower().startswith(("localhost", "127.", "[::1]")):
        assert refusal is not None
    if refusal is not None:
        assert refusal.problem.isascii()
        assert refusal.next_step


@pytest.mark.parametrize(
    ("given_origin", "kept"),
    [
        ("https://console.example", "https://console.example"),
        ("HTTPS://Console.Example:443", "https://console.example"),
        ("http://10.0.0.7:3000", "http://10.0.0.7:3000"),
        ("http://[2001:db8::1]:3000", "http://[2001:db8::1]:3000"),
    ],
)
def test_an_origin_is_kept_as_browsers_send_it(given_origin: str, kept: str) -> None:
    assert WebSettings.model_validate({"origins": [given_origin]}).origins == (kept,)


@pytest.mark.parametrize(
    "wrong",
    [
        *("console.example", "https://", "https://console.example/", "https://console.example/dagster", "*"),
        *("https://*", "https://*.example", "ftp://console.example", "https://me@console.example", "null", ""),
        *("https://console.example?x", "https://console.example:port", "https://[console"),
    ],
)
def test_what_is_no_origin_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="origin"):
        WebSettings.model_validate({"origins": [wrong]})
