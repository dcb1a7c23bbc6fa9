"""A registry behind HTTP: its answer for an id, and every way in which the answer is missing."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lockstep.declare.decoders import schema_registry
from lockstep.declare.decoders.schema_registry import HttpRegistry, SchemaRefused
from lockstep.decoders import RegisteredSchema, SchemaReference
from lockstep.errors import RegistryUnreachable
from tests.support.decoders.readings import UPDATE
from tests.support.decoders.registered import FIRST_ID, HttpSchemas, http_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = json.dumps(UPDATE)
PATIENCE_SECONDS = 3.0
CANARY = "canary-41"


@pytest.fixture
def schemas() -> Iterator[HttpSchemas]:
    with http_schemas() as running:
        yield running


def problem(registry: HttpRegistry) -> str:
    with pytest.raises(RegistryUnreachable) as silent:
        registry.schema(FIRST_ID)
    return str(silent.value)


def patient(schemas: HttpSchemas) -> HttpRegistry:
    """A registry whose timeout a slow machine does not reach."""
    return HttpRegistry(schemas.url, timeout_seconds=60.0)


def impatient(schemas: HttpSchemas) -> HttpRegistry:
    return HttpRegistry(schemas.url, timeout_seconds=PATIENCE_SECONDS)


def test_a_schema_comes_with_its_kind_and_its_text(schemas: HttpSchemas) -> None:
    schemas.register("updates-value", TEXT)
    schemas.register("panels-value", "message A { }", "PROTOBUF")
    registry = HttpRegistry(f"{schemas.url}/")
    assert registry.schema(FIRST_ID) == RegisteredSchema("AVRO", TEXT)
    assert registry.schema(FIRST_ID + 1) == RegisteredSchema("PROTOBUF", "message A { }")
    assert schemas.asked == [f"/schemas/ids/{FIRST_ID}", f"/schemas/ids/{FIRST_ID + 1}"]


def test_a_schema_comes_with_all_that_it_builds_on_each_after_its_own(schemas: HttpSchemas) -> None:
    schemas.register("inner/x", '"inner"')
    inner = {"name": "acme.Inner", "subject": "inner/x", "version": 1}
    schemas.register("outer", '"outer"', references=[inner])
    outer = {"name": "acme.Outer", "subject": "outer", "version": 1}
    whole = schemas.register("whole", '"whole"', references=[outer, inner])
    assert HttpRegistry(schemas.url).schema(whole) == RegisteredSchema(
        "AVRO", '"whole"', (SchemaReference("acme.Inner", '"inner"'), SchemaReference("acme.Outer", '"outer"'))
    )
    assert schemas.asked[2] == "/subjects/inner%2Fx/versions/1?deleted=true"


def test_schemas_that_build_on_each_other_end(schemas: HttpSchemas) -> None:
    first = {"name": "a", "subject": "a", "version": 1}
    second = {"name": "b", "subject": "b", "version": 1}
    schemas.register("a", '"a"', references=[second])
    schemas.register("b", '"b"', references=[first])
    found = HttpRegistry(schemas.url).schema(FIRST_ID)
    assert found is not None
    assert {one.name for one in found.references} == {"a", "b"}


def test_only_the_registrys_own_not_found_says_that_there_is_no_such_id(schemas: HttpSchemas) -> None:
    assert HttpRegistry(schemas.url).schema(FIRST_ID) is None
    schemas.refusing = [(404, b"<html>nothing here</html>")]
    assert "gave no schema: HTTP 404, and JSON is malformed" in problem(patient(schemas))
    schemas.refusing = [(404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}')]
    assert "gave no schema: HTTP 404\n" in problem(patient(schemas))


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_an_answer_that_may_pass_is_asked_for_again(schemas: HttpSchemas, status: int) -> None:
    schemas.register("updates-value", TEXT)
    schemas.refusing = [(status, b'{"error_code": 50001}')]
    assert HttpRegistry(schemas.url).schema(FIRST_ID) == RegisteredSchema("AVRO", TEXT)


def test_an_answer_that_does_not_pass_ends_after_the_timeout(schemas: HttpSchemas) -> None:
    schemas.refusing = [(500, b"")] * 1_000
    assert f"gave no schema: HTTP 500, for {PATIENCE_SECONDS:g} s\n" in problem(impatient(schemas))
    assert 1 < len(schemas.asked) < 100


def test_a_registry_that_never_answers_ends_after_the_timeout(schemas: HttpSchemas) -> None:
    schemas.hold.clear()
    assert "no answer (" in problem(impatient(schemas))


def test_nobody_at_the_address_is_said_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = problem(HttpRegistry(f"http://127.0.0.1:{port}", timeout_seconds=PATIENCE_SECONDS))
    assert "no answer (ConnectionError)" in said
    assert f"see whether http://127.0.0.1:{port}/schemas/types answers" in said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, b"<html>login</html>"), "HTTP 200, and JSON is malformed"),
        ((200, b'{"id": 1}'), "missing required field `schema`"),
        ((302, b""), "HTTP 302"),
        ((403, b"{}"), "HTTP 403"),
    ],
)
def test_an_answer_that_is_no_schema_is_no_verdict(schemas: HttpSchemas, answer: tuple[int, bytes], said: str) -> None:
    schemas.refusing = [answer]
    assert said in problem(patient(schemas))
    assert len(schemas.asked) == 1  # a redirect is not followed


def test_an_answer_larger_than_any_schema_is_broken_off(schemas: HttpSchemas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "ANSWER_BYTES_MAX", 1_000)
    schemas.register("updates-value", " " * 100_000)
    assert "an answer of more than 1000 bytes" in problem(patient(schemas))


def drip(server: socket.socket) -> None:
    """Answer header by header, each before any timeout of a socket."""
    with suppress(OSError):
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            for number in range(400):
                time.sleep(PATIENCE_SECONDS / 10)
                connection.sendall(b"X-%d: y\r\n" % number)


def test_headers_without_end_take_no_longer_than_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=(server,), daemon=True).start()
        began = time.monotonic()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        said = problem(HttpRegistry(address, timeout_seconds=PATIENCE_SECONDS))
        assert time.monotonic() - began < 10 * PATIENCE_SECONDS  # a fourth of the time that the headers take
    assert "it did not end its answer within" in said


def test_the_password_is_fetched_where_it_is_needed_and_shown_nowhere(
    schemas: HttpSchemas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas.register("updates-value", TEXT)
    schemas.authorization = "Basic " + base64.b64encode(f"reader:{CANARY}".encode()).decode()
    (tmp_path / "secret").write_text(f"{CANARY}\n")
    monkeypatch.setenv("REGISTRY_CANARY", CANARY)
    for place in (f"file:{tmp_path / 'secret'}", "env:REGISTRY_CANARY"):
        registry = HttpRegistry(schemas.url, user="reader", password_from=place)
        assert registry.schema(FIRST_ID) == RegisteredSchema("AVRO", TEXT)
        assert CANARY not in repr(registry)
    monkeypatch.setenv("REGISTRY_CANARY", f"not-{CANARY}")
    said = problem(HttpRegistry(schemas.url, user="reader", password_from="env:REGISTRY_CANARY"))  # noqa: S106  # a place
    assert "gave no schema: HTTP 401" in said
    assert "[registry] part of the settings to an account that may read schemas" in said
    assert CANARY not in said


def test_a_password_of_any_letters_is_sent_as_utf_8(schemas: HttpSchemas, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter outside of Latin-1 must not cause an error about each message that shows the letter."""
    schemas.register("updates-value", TEXT)
    schemas.authorization = "Basic " + base64.b64encode(f"läser:{CANARY}€".encode()).decode()
    monkeypatch.setenv("REGISTRY_CANARY", f"{CANARY}€")
    registry = HttpRegistry(schemas.url, user="läser", password_from="env:REGISTRY_CANARY")  # noqa: S106  # a place
    assert registry.schema(FIRST_ID) == RegisteredSchema("AVRO", TEXT)


@pytest.mark.parametrize("place", ["file:/nowhere/at/all", "env:NOT_SET_HERE"])
def test_a_password_that_is_not_there_is_asked_for_by_its_place(schemas: HttpSchemas, place: str) -> None:
    said = problem(HttpRegistry(schemas.url, user="reader", password_from=place))
    assert "password" in said
    assert "on every machine that runs tasks" in said
    assert schemas.asked == []


def test_a_schema_is_found_only_after_it_was_registered_and_has_one_id(schemas: HttpSchemas) -> None:
    registry = HttpRegistry(schemas.url)
    assert registry.find_id("to/rows-value", TEXT) is None, "the subject does not exist"
    schemas.register("to/rows-value", '"string"')
    assert registry.find_id("to/rows-value", TEXT) is None, "the subject has another schema"
    assert registry.register("to/rows-value", TEXT) == FIRST_ID + 1
    assert registry.register("to/rows-value", TEXT) == registry.find_id("to/rows-value", TEXT) == FIRST_ID + 1
    assert schemas.asked[0] == "/subjects/to%2Frows-value"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, b"<html>login</html>"), "HTTP 200, and JSON is malformed"),
        ((200, b'{"schema": "x"}'), "missing required field `id`"),
        ((404, b"<html>nothing here</html>"), "HTTP 404, and JSON is malformed"),
        ((200, b'{"id": -1}'), "Expected `int` >= 1"),
        ((200, b'{"id": 4294967296}'), "Expected `int` <= 2147483647"),
        ((200, b'{"id": 1, "x": ' + b"[" * 100_000), "recursion"),
        ((404, b'{"error_code": 40403, "message": "Sch\xe9ma"}'), "codec can't decode"),
        ((302, b"{}"), "HTTP 302"),
        ((401, b"{}"), "HTTP 401"),
    ],
)
def test_an_answer_without_an_id_does_not_mean_that_a_schema_is_absent(
    schemas: HttpSchemas, answer: tuple[int, bytes], said: str
) -> None:
    schemas.refusing = [answer]
    with pytest.raises(RegistryUnreachable) as unreachable:
        patient(schemas).find_id("rows-value", TEXT)
    assert said in str(unreachable.value)
    schemas.refusing = [answer]
    with pytest.raises(RegistryUnreachable):
        patient(schemas).register("rows-value", TEXT)


def test_a_registry_that_takes_no_schema_tells_its_reason(schemas: HttpSchemas) -> None:
    schemas.is_read_only = True
    with pytest.raises(SchemaRefused, match="HTTP 403: this account may not register it"):
        patient(schemas).register("rows-value", TEXT)
    schemas.is_read_only = False
    schemas.incompatible = {"rows-value"}
    with pytest.raises(SchemaRefused, match="HTTP 409, Schema being registered is incompatible"):
        patient(schemas).register("rows-value", TEXT)
    schemas.refusing = [(500, b"")] * 1_000
    with pytest.raises(RegistryUnreachable, match="HTTP 500"):
        impatient(schemas).register("rows-value", TEXT)
