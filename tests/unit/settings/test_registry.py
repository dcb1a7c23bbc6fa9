"""The schema registry of an installation: named once, its password never written."""

from __future__ import annotations

import pytest

from lockstep.declare.decoders.schema_registry import HttpRegistry, TokenClient
from lockstep.engine.driver.run import make_registry
from lockstep.errors import SettingsError
from lockstep.settings import load_settings

CANARY = "canary-42"
FULL = {
    "URL": "https://registry.internal:8443/api",
    "USER": "reader",
    "SECRETS__PASSWORD": "env:REGISTRY_SECRET",
    "TIMEOUT_SECONDS": "3",
}


def with_settings(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"LOCKSTEP_REGISTRY__{name}", value)


def test_without_an_address_there_is_no_registry() -> None:
    assert make_registry(load_settings().registry) is None


def test_the_settings_become_the_registry_that_tasks_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    with_settings(monkeypatch, **FULL)
    assert make_registry(load_settings().registry) == HttpRegistry(
        url=FULL["URL"],
        user="reader",
        password_from="env:REGISTRY_SECRET",  # noqa: S106  # its place
        timeout_seconds=3.0,
    )


CLIENT = {
    "URL": "https://registry.internal",
    "CLIENT_ID": "lockstep",
    "SECRETS__CLIENT_SECRET": "file:/run/secrets/registry",
    "ISSUER_URL": "https://login.example/oauth2/v2.0/token",
    "ISSUER_HOSTS": '["login.example"]',
    "SCOPE": "api://registry/.default",
    "HEADERS": '{"target-sr-cluster": "lsrc-1"}',
}


def test_a_client_of_an_issuer_becomes_the_registry_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with_settings(monkeypatch, **CLIENT)
    client = TokenClient(CLIENT["ISSUER_URL"], "lockstep", "file:/run/secrets/registry", CLIENT["SCOPE"])
    assert make_registry(load_settings().registry) == HttpRegistry(
        url=CLIENT["URL"], client=client, headers=(("target-sr-cluster", "lsrc-1"),)
    )


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in CLIENT.items() if name not in names}


FORGED = {
    address: (CLIENT | {"ISSUER_URL": address}, "registry.issuer_url")
    for address in (
        *("http://login.example/token", "https://login.example", "https://other.example/token"),
        *("https://login.example:443" + "@other.example/token", "https://other.example\\" + "@login.example/token"),
        *("https://login.example/token?x=1", "https://login.example/token#x", "https://LOGIN.example/token"),
        *("https://login.example.other.example/token", "https://[login.example]/token", "https://login.example:x/t"),
    )
}
WRONG = FORGED | {
    "a client without a secret": (without("SECRETS__CLIENT_SECRET"), "a client needs registry.client_id"),
    "a client without an issuer": (without("ISSUER_URL"), "a client needs registry.client_id"),
    "a secret without a client": (without("CLIENT_ID"), "a client needs registry.client_id"),
    "an issuer that is not allowed": (without("ISSUER_HOSTS"), "which is not in registry.issuer_hosts"),
    "hosts alone": ({"ISSUER_HOSTS": '["login.example"]'}, "registry.issuer_hosts has no effect"),
    "a scope alone": ({"SCOPE": "api://registry"}, "registry.scope has no effect"),
    "two logins": (CLIENT | FULL, "registry.user has no effect with registry.client_id"),
    "a readable token": (CLIENT | {"URL": "http://registry"}, "a token over http is readable"),
    "a written client secret": (CLIENT | {"SECRETS__CLIENT_SECRET": CANARY}, "does not name the place of the secret"),
    "a login as a header": (CLIENT | {"HEADERS": f'{{"Authorization": "{CANARY}"}}'}, "is not a further header"),
    "a header of two lines": (CLIENT | {"HEADERS": f'{{"a": "b\\r\\n{CANARY}"}}'}, "other characters than printable"),
    "a header with a space": (CLIENT | {"HEADERS": f'{{"a b": "{CANARY}"}}'}, "is not a further header"),
    "no address": ({"URL": "registry:8081"}, "is not an address such as http://registry:8081"),
    "another scheme": ({"URL": "file:///etc/passwd"}, "is not an address such as http://registry:8081"),
    "a token in the address": ({"URL": f"https://host/?token={CANARY}"}, "registry.url: is not an address"),
    "a password in the address": ({"URL": f"http://me:{CANARY}" + "@host"}, "an address holds no user or password"),
    "a written password": (FULL | {"SECRETS__PASSWORD": CANARY}, "does not name the place of the secret"),
    "a relative file": (FULL | {"SECRETS__PASSWORD": "file:secret"}, "does not name the place of the secret"),
    "a user alone": ({"USER": "reader"}, "a user needs registry.secrets password"),
    "an unknown secret": (FULL | {"SECRETS__TOKEN": CANARY}, "registry.secrets"),
    "no time": ({"TIMEOUT_SECONDS": "0"}, "greater than 0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_setting_is_refused_by_name_and_no_secret_is_shown(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, problem = WRONG[what]
    with_settings(monkeypatch, **settings)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert "registry" in str(refused.value)
    assert problem in str(refused.value)
    assert CANARY not in str(refused.value)
