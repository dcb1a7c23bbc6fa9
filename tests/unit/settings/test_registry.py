"""The schema registry of an installation: named once, its password never written."""

from __future__ import annotations

import pytest

from lockstep.declare.decoders.schema_registry import HttpRegistry
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
        password_from="env:REGISTRY_SECRET",  # noqa: S106  # where it is
        timeout_seconds=3.0,
    )


WRONG = {
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
