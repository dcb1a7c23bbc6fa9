"""A registry with OpenID Connect tokens: who receives the secret, when a token is renewed, and every refusal."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trustme

from lockstep.declare.decoders import schema_registry
from lockstep.declare.decoders.schema_registry import HttpRegistry, TokenClient
from lockstep.decoders import RegisteredSchema
from lockstep.errors import RegistryUnreachable
from tests.support.decoders.readings import UPDATE
from tests.support.decoders.registered import FIRST_ID, HttpSchemas, http_schemas
from tests.support.token_server import CLIENT, CLIENT_PHRASE, TokenServer, run_token_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = json.dumps(UPDATE)
FOUND = RegisteredSchema("AVRO", TEXT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(made / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(made / "tokens.pem")
    (made / "secret").write_text(f"{CLIENT_PHRASE}\n")
    return made


@pytest.fixture
def tokens(folder: Path) -> Iterator[TokenServer]:
    with run_token_server(folder) as running:
        yield running


@pytest.fixture
def schemas(folder: Path) -> Iterator[HttpSchemas]:
    with http_schemas(folder / "tokens.pem") as running:
        running.register("updates-value", TEXT)
        yield running


@pytest.fixture
def registry(folder: Path, tokens: TokenServer, schemas: HttpSchemas) -> HttpRegistry:
    client = TokenClient(tokens.url, CLIENT, f"file:{folder / 'secret'}", "api://registry/.default")
    return HttpRegistry(schemas.url, client=client, ca_file=folder / "ca.pem", timeout_seconds=30.0)


def sent(schemas: HttpSchemas) -> list[str]:
    return [headers.get("Authorization", "") for headers in schemas.headers]


def problem(registry: HttpRegistry) -> str:
    with pytest.raises(RegistryUnreachable) as silent:
        registry.schema(FIRST_ID)
    assert CLIENT_PHRASE not in str(silent.value)
    return str(silent.value)


def test_one_token_serves_all_questions_of_a_process_and_the_secret_goes_to_the_issuer_alone(
    registry: HttpRegistry, tokens: TokenServer, schemas: HttpSchemas
) -> None:
    asking = replace(registry, headers=(("target-sr-cluster", "lsrc-1"),))
    assert [asking.schema(FIRST_ID) for _ in range(3)] == [FOUND] * 3
    assert (tokens.issued, tokens.scopes) == (1, ["api://registry/.default"])
    assert len(set(sent(schemas))) == 1
    assert sent(schemas)[0].startswith("Bearer ey")
    assert [headers["target-sr-cluster"] for headers in schemas.headers] == ["lsrc-1"] * 3
    assert CLIENT_PHRASE not in repr(registry)


def test_a_token_is_renewed_before_it_expires(
    registry: HttpRegistry, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.schema(FIRST_ID)
    now = time.monotonic
    for share, issued in ((0.7, 1), (0.9, 2)):
        monkeypatch.setattr(time, "monotonic", lambda share=share: now() + share * tokens.life_seconds)
        assert registry.schema(FIRST_ID) == FOUND
        assert tokens.issued == issued


def test_a_token_that_was_revoked_is_replaced_once(
    registry: HttpRegistry, tokens: TokenServer, schemas: HttpSchemas
) -> None:
    registry.schema(FIRST_ID)
    schemas.refusing = [(401, b"{}")]
    assert registry.schema(FIRST_ID) == FOUND
    assert tokens.issued == 2
    schemas.refusing = [(401, b"{}")] * 9
    assert "gave no schema: HTTP 401" in problem(registry)
    assert (tokens.issued, len(schemas.refusing)) == (3, 7)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_an_issuer_that_fails_for_a_moment_is_asked_again(
    status: int, registry: HttpRegistry, tokens: TokenServer, schemas: HttpSchemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.refusal = status
    monkeypatch.setattr(schema_registry, "PAUSE_SECONDS_FIRST", 0.05)
    brief = replace(registry, timeout_seconds=3.0)
    assert f"HTTP {status} from {tokens.url}, for 3 s" in problem(brief)
    assert schemas.asked == []
    tokens.refusal = 0
    assert registry.schema(FIRST_ID) == FOUND


def test_a_redirect_of_the_issuer_is_not_followed(
    registry: HttpRegistry, tokens: TokenServer, schemas: HttpSchemas
) -> None:
    tokens.redirect = f"{schemas.url}/oauth"
    assert "issued no token: HTTP 307" in problem(registry)
    assert schemas.asked == []


@pytest.mark.parametrize("wrong", ["client", "secret"])
def test_a_client_that_the_issuer_does_not_know_is_named(wrong: str, registry: HttpRegistry, tmp_path: Path) -> None:
    assert registry.client is not None
    (tmp_path / "other").write_text("other")
    changed = {"client": {"client_id": "other"}, "secret": {"secret_from": f"file:{tmp_path / 'other'}"}}[wrong]
    said = problem(replace(registry, client=replace(registry.client, **changed)))
    assert "issued no token: HTTP 401, 'invalid_client'" in said
    assert "check client_id, client_secret, scope and issuer_url" in said


def test_a_certificate_that_is_not_trusted_gets_no_secret(registry: HttpRegistry, tokens: TokenServer) -> None:
    assert "TLS: " in problem(replace(registry, ca_file=None))
    assert tokens.scopes == []


@pytest.mark.parametrize("text", ["", "two words", "line\r\nX-Header: 1", "line\n", "ü", "a" * 10 + "\x00"])
def test_a_token_that_no_header_may_hold_is_refused(
    text: str, registry: HttpRegistry, tokens: TokenServer, schemas: HttpSchemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "issue", lambda: text)
    assert "issued no token: HTTP 200, Expected `str` matching regex" in problem(registry)
    assert schemas.asked == []


def test_a_login_of_the_home_folder_is_sent_to_nobody(
    registry: HttpRegistry, schemas: HttpSchemas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP library would send the login instead of the token."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    registry.schema(FIRST_ID)
    replace(registry, client=None).schema(FIRST_ID)
    assert [each.partition(" ")[0] for each in sent(schemas)] == ["Bearer", ""]
