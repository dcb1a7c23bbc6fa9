"""`lockstep settings` shows every setting with its origin, and no secret of any name."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from lockstep import Limits
from lockstep.operations.show_settings import HIDDEN, AllOptions, Option, list_options
from lockstep.settings import Settings
from tests.support.adding_stream import adding

CANARY = "canary-7f3a"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working folder, and clear the environment of settings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("LOCKSTEP_")]:
        monkeypatch.delenv(name)
    return tmp_path


def by_name(found: AllOptions) -> dict[str, Option]:
    return {option.name: option for option in found.options}


def test_each_value_names_where_it_comes_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lockstep.toml").write_text('table_root = "/data"\n[kafka]\ntimeout_seconds = 5.0\n')
    monkeypatch.setenv("LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:7777")
    monkeypatch.setenv("LOCKSTEP_KAFKA__TIMEOUT_SECONDS", "6")
    found = by_name(list_options({}))
    servers = Option(
        "kafka.bootstrap_servers",
        "127.0.0.1:7777",
        "127.0.0.1:9092",
        "environment",
        "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS",
    )
    assert found["kafka.bootstrap_servers"] == servers
    assert (found["kafka.timeout_seconds"].value, found["kafka.timeout_seconds"].origin) == ("6.0", "environment")
    assert found["table_root"] == Option("table_root", "/data", "var/tables", "file", "lockstep.toml")
    assert found["spark.driver_memory"] == Option("spark.driver_memory", "1g", "1g", "default", "")


def test_no_setting_is_left_out() -> None:
    leaves = {option.name.partition(".")[0] for option in list_options({}).options}
    assert leaves == set(Settings.model_fields)


def test_options_of_a_stream_are_told_apart_from_its_defaults() -> None:
    found = by_name(list_options({"adding": adding(r"a\..+")}))
    assert found["adding.topics.pattern"].origin == "declaration"
    assert found["adding.trigger"].origin == "default"
    held = found["adding.limits.batch_messages"]
    assert (held.value, held.default, held.origin) == ("None", str(Limits().batch_messages), "default")


SECRETS = {
    "a password of Spark": ("LOCKSTEP_SPARK__OPTIONS", f'{{"spark.hadoop.fs.s3a.secret.key": "{CANARY}"}}'),
    "a token of Spark": ("LOCKSTEP_SPARK__OPTIONS", f'{{"spark.my.Token": "{CANARY}"}}'),
    "a key of Spark": ("LOCKSTEP_SPARK__OPTIONS", f'{{"spark.hadoop.fs.azure.account.key.a.example": "{CANARY}"}}'),
    "a variable of executors": ("LOCKSTEP_SPARK__OPTIONS", f'{{"spark.executorEnv.PGPW": "{CANARY}"}}'),
    "a login in an address": (
        "LOCKSTEP_SPARK__OPTIONS",
        f'{{"spark.jars.repositories": "https://me:{CANARY}@mirror.example/jars"}}',
    ),
    "options of the JVM": ("LOCKSTEP_SPARK__OPTIONS", f'{{"spark.driver.extraJavaOptions": "-Dp={CANARY}"}}'),
    "a certificate in Kafka's options": (
        "LOCKSTEP_KAFKA__OPTIONS",
        f'{{"security.protocol": "SSL", "ssl.certificate.pem": "{CANARY}"}}',
    ),
}


@pytest.mark.parametrize("which", SECRETS)
def test_what_may_be_a_secret_is_only_said_to_be_set(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*SECRETS[which])
    found = list_options({})
    assert CANARY not in msgspec.json.encode(found).decode()
    assert [option.origin for option in found.options if option.value == HIDDEN] == ["environment"]


def test_the_content_of_a_secret_that_is_referred_to_is_never_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "password").write_text(CANARY)
    monkeypatch.setenv(
        "LOCKSTEP_KAFKA__OPTIONS",
        '{"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}',
    )
    monkeypatch.setenv("LOCKSTEP_KAFKA__SECRETS", f'{{"sasl.password": "file:{folder}/password"}}')
    found = by_name(list_options({}))
    assert found["kafka.options.sasl.username"].value == "reader"
    assert found["kafka.secrets.sasl.password"].value == f"file:{folder}/password"
    assert CANARY not in msgspec.json.encode(list(found.values())).decode()
