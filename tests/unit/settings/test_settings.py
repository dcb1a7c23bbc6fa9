"""Settings are read from one file and the environment; a wrong setting is named, and no secret is shown."""

from __future__ import annotations

import os
import re
import tempfile
import traceback
from pathlib import Path

import pytest

from lockstep.errors import SettingsError
from lockstep.settings import load_settings

ALLOWED = (
    "security.protocol, sasl.mechanism, sasl.username, "
    "sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.client.id, sasl.oauthbearer.scope, "
    "sasl.oauthbearer.extensions, sasl.oauthbearer.metadata.authentication.type, sasl.oauthbearer.config, "
    "https.ca.location, "
    "ssl.ca.location, ssl.ca.pem, ssl.certificate.location, ssl.certificate.pem, ssl.key.location, "
    "ssl.keystore.location, ssl.crl.location, ssl.cipher.suites, ssl.curves.list, ssl.sigalgs.list, "
    "client.rack, client.dns.lookup, broker.address.family, socket.*, reconnect.*, metadata.*, topic.metadata.*"
)
CORRECT = "correct lockstep.toml or the LOCKSTEP_* variables of the environment"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working folder, and clear the environment of settings."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("LOCKSTEP_")]:
        monkeypatch.delenv(name)
    return tmp_path


def write(folder: Path, text: str, name: str = "lockstep.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal() -> str:
    with pytest.raises(SettingsError) as refused:
        load_settings()
    return str(refused.value)


def test_without_file_and_environment_the_defaults_are_in_force(folder: Path) -> None:
    settings = load_settings()
    assert settings.kafka.bootstrap_servers == "127.0.0.1:9092"
    assert settings.kafka.options == {}
    assert settings.table_root == folder / "var" / "tables"
    assert settings.local_root == Path(tempfile.gettempdir()) / "lockstep"
    assert settings.spark.master == f"local[{os.cpu_count()},3]"


def test_the_file_is_read(folder: Path) -> None:
    write(
        folder,
        """
        table_root = "/data/tables"
        [kafka]
        bootstrap_servers = "a.example:9092, b.example:9093"
        [kafka.options]
        "security.protocol" = "SASL_SSL"
        "sasl.mechanism" = "PLAIN"
        "sasl.username" = "reader"
        [kafka.secrets]
        "sasl.password" = "file:/run/secrets/kafka"
        [spark]
        master = "local[2,3]"
        """,
    )
    settings = load_settings()
    assert settings.table_root == Path("/data/tables")
    assert settings.kafka.bootstrap_servers == "a.example:9092, b.example:9093"
    assert settings.kafka.options == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
    }
    assert settings.kafka.secrets == {"sasl.password": "file:/run/secrets/kafka"}
    assert (settings.spark.master, settings.spark.driver_memory) == ("local[2,3]", "1g")


def test_the_environment_overrides_single_keys_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, '[kafka]\nbootstrap_servers = "a.example:9092"\ntimeout_seconds = 5.0\n')
    monkeypatch.setenv("LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:7777")
    monkeypatch.setenv("LOCKSTEP_TABLE_ROOT", "elsewhere")
    settings = load_settings()
    assert (settings.kafka.bootstrap_servers, settings.kafka.timeout_seconds) == ("127.0.0.1:7777", 5.0)
    assert settings.table_root == folder / "elsewhere"


def test_another_file_may_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, 'table_root = "/wrong"\n')
    named = write(folder, 'table_root = "/right"\n', "other.toml")
    monkeypatch.setenv("LOCKSTEP_SETTINGS", str(named))
    assert load_settings().table_root == Path("/right")


def test_a_named_file_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_SETTINGS", "/nowhere/lockstep.toml")
    assert refusal() == (
        "LOCKSTEP_SETTINGS names /nowhere/lockstep.toml, and there is no such file\n"
        "  next: correct the name, or unset LOCKSTEP_SETTINGS to read lockstep.toml"
    )


def test_a_mistyped_variable_is_refused_and_not_silently_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_TABLEROOT", "/data")
    assert refusal() == (
        "LOCKSTEP_TABLEROOT in the environment is not a setting; known: LOCKSTEP_KAFKA, LOCKSTEP_SPARK, "
        "LOCKSTEP_REGISTRY, LOCKSTEP_DAGSTER, LOCKSTEP_WEB, LOCKSTEP_HEALTH, LOCKSTEP_SCHEDULES, "
        "LOCKSTEP_TABLE_ROOT, LOCKSTEP_LOCAL_ROOT, LOCKSTEP_CODE_ROOT, "
        "LOCKSTEP_REWIND_HOURS, LOCKSTEP_TARGET_FILE_MB, LOCKSTEP_EXTENSIONS (parts after __)\n"
        "  next: correct or unset LOCKSTEP_TABLEROOT (the closest is LOCKSTEP_TABLE_ROOT)"
    )


def test_a_group_and_its_part_joined_by_one_underscore_are_refused_with_the_right_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKSTEP_KAFKA_BOOTSTRAP_SERVERS", "a:1")
    assert refusal().endswith("LOCKSTEP_KAFKA_BOOTSTRAP_SERVERS (the closest is LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS)")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('tabel_root = "/data"', "tabel_root is not a setting (known: kafka, spark, "),
        ("[tables]\nx = 1", "tables is not a setting (known: kafka, spark, "),
        ('[kafka]\nservers = "a:1"', "kafka.servers is not a setting (known in kafka: bootstrap_servers, "),
        ("[kafka]\ntimeout_seconds = 'soon'", "kafka.timeout_seconds = 'soon': Input should be a valid number"),
        ("[kafka]\ntimeout_seconds = 0", "kafka.timeout_seconds = 0: Input should be greater than 0"),
        (
            '[kafka]\nbootstrap_servers = "a.example"',
            "kafka.bootstrap_servers = 'a.example': 'a.example' is not host:port",
        ),
        ('[kafka]\nbootstrap_servers = "a:1,:2"', "kafka.bootstrap_servers = 'a:1,:2': ':2' is not host:port"),
        ('[kafka]\nbootstrap_servers = "a:1,"', "kafka.bootstrap_servers = 'a:1,': '' is not host:port"),
        (
            'table_root = "gs://bucket/tables"',
            "table_root = 'gs://bucket/tables': is neither the path of a folder, such as /data/lockstep, nor s3://",
        ),
        ('table_root = "s3://bucket"', "table_root = 's3://bucket': is not a bucket and a prefix below it, such as"),
        ('table_root = "s3://bucket/../x"', "table_root = 's3://bucket/../x': is not a bucket and a prefix below it"),
        ('table_root = "s3://bucket/a#b"', "table_root = 's3://bucket/a#b': has '#' in its prefix, which delta-rs and"),
        (
            'table_root = "s3://bucket/a%20b"',
            "table_root = 's3://bucket/a%20b': has '%20' in its prefix, which delta-rs",
        ),
        ('local_root = "s3://bucket/x"', "local_root = 's3://bucket/x': is not the path of a folder"),
        ('table_root = ""', "table_root = '': is not the path of a folder"),
        ('local_root = "~/local"', "local_root = '~/local': starts with ~, which only a shell expands"),
        ("rewind_hours = inf", "rewind_hours = inf: Input should be less than or equal to 876600"),
        ("rewind_hours = nan", "rewind_hours = nan: Input should be"),
        ("[dagster]\nretention_days = 1e300", "dagster.retention_days = 1e+300: Input should be less than or equal to"),
        (
            "[kafka]\ntimeout_seconds = 1e6",
            "kafka.timeout_seconds = 1000000.0: Input should be less than or equal to 3600",
        ),
        ("rewind_hours = true", "rewind_hours = True: is true or false, which no setting is"),
        ("[kafka]\ntimeout_seconds = true", "kafka.timeout_seconds = True: is true or false, which no setting is"),
        ("[spark]\nmaster = 4", "spark.master = 4: Input should be a valid string"),
        ('[kafka.options]\n"socket.timeout.ms" = 5', "kafka.options.socket.timeout.ms: Input should be a valid string"),
    ],
)
def test_a_wrong_key_is_named_with_its_value(folder: Path, text: str, problem: str) -> None:
    write(folder, text)
    message = refusal()
    assert message.startswith(f"settings are wrong: {problem}")
    assert message.endswith(f"\n  next: {CORRECT}")


def test_a_table_root_that_delta_rs_would_read_as_another_one_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build servers make folders like this: a table must not be written there and then be searched for elsewhere."""
    working = folder / "plants%2Fmain"
    working.mkdir()
    monkeypatch.chdir(working)
    assert refusal() == (
        f"settings are wrong: table_root = '{working}/var/tables': has '%2F', which delta-rs reads as an escape\n"
        "  next: set table_root to a folder whose whole path has no such part"
    )


def test_all_wrong_keys_are_named_at_once(folder: Path) -> None:
    write(folder, '[kafka]\nservers = "a:1"\ntimeout_seconds = -1.0\n')
    assert refusal() == (
        "settings are wrong: kafka.timeout_seconds = -1.0: Input should be greater than 0; "
        "kafka.servers is not a setting (known in kafka: bootstrap_servers, options, secrets, issuer_hosts, "
        "timeout_seconds, topic_identity)\n"
        f"  next: {CORRECT}"
    )


@pytest.mark.parametrize(
    "option",
    [
        "group.id",
        "auto.offset.reset",
        "isolation.level",
        "enable.auto.commit",
        "fetch.min.bytes",
        "bootstrap.servers",
        "plugin.library.paths",
        "sasl.oauthbearer.method",
        "enable.sasl.oauthbearer.unsecure.jwt",
        "sasl.kerberos.kinit.cmd",
        "enable.ssl.certificate.verification",
        "ssl.engine.location",
        "ssl.providers",
        "no.such.option",
    ],
)
def test_an_option_that_is_not_about_reaching_the_cluster_is_refused_by_name(folder: Path, option: str) -> None:
    write(folder, f'[kafka.options]\n"{option}" = "value"\n')
    assert refusal() == (
        f"settings are wrong: kafka.options: option {option!r} is not passed through; allowed: {ALLOWED}\n"
        f"  next: {CORRECT}"
    )


MADE_UP = "corr3ct-h0rse"
LEAKS = {
    "beside a refused option": ("LOCKSTEP_KAFKA__OPTIONS", f'{{"sasl.password": "{MADE_UP}", "group.id": "x"}}'),
    "in an option of another type": ("LOCKSTEP_KAFKA__OPTIONS", f'{{"sasl.password": ["{MADE_UP}"]}}'),
    "as an option": ("LOCKSTEP_KAFKA__OPTIONS", f'{{"sasl.password": "{MADE_UP}"}}'),
    "in the place of a reference": ("LOCKSTEP_KAFKA__SECRETS", f'{{"sasl.password": "{MADE_UP}"}}'),
    "as a file that is no path": ("LOCKSTEP_KAFKA__SECRETS", f'{{"sasl.password": "file:{MADE_UP}"}}'),
    "in options that are no JSON": ("LOCKSTEP_KAFKA__OPTIONS", f'{{"sasl.password": "{MADE_UP}"'),
    "under a mistyped key": ("LOCKSTEP_KAFKA__PASSWORD", MADE_UP),
    "in the address": ("LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS", f"reader:{MADE_UP}@a.example:9092"),
    "in place of the whole": ("LOCKSTEP_KAFKA", f'["{MADE_UP}"]'),
    "under a mistyped variable": ("LOCKSTEP_PASSWORD", MADE_UP),
}


@pytest.mark.parametrize("where", LEAKS)
def test_no_secret_is_shown_not_even_in_a_traceback(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*LEAKS[where])
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert MADE_UP not in str(refused.value)
    assert MADE_UP not in "".join(traceback.format_exception(refused.value))


def test_a_value_for_a_whole_group_is_refused_with_the_names_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_KAFKA", "broker:9092")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert "LOCKSTEP_KAFKA is a group of settings" in str(refused.value)
    assert refused.value.next_step.startswith("set one of LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS, ")


@pytest.mark.parametrize("cron", ["hourly", "10 * * *", "99 * * * *", "0 24 * * *", "0 0 31,32 * *"])
def test_a_schedule_that_is_no_cron_expression_is_refused(monkeypatch: pytest.MonkeyPatch, cron: str) -> None:
    monkeypatch.setenv("LOCKSTEP_SCHEDULES__CHECKS", cron)
    with pytest.raises(SettingsError, match=re.escape(f"schedules.checks = {cron!r}: is not a cron expression")):
        load_settings()


@pytest.mark.parametrize("cron", ["5-55/10 * * * *", "*/90 0,12 1-15 jan mon-fri", "0 0 * * 7"])
def test_a_schedule_may_be_any_cron_expression(monkeypatch: pytest.MonkeyPatch, cron: str) -> None:
    monkeypatch.setenv("LOCKSTEP_SCHEDULES__CHECKS", cron)
    assert load_settings().schedules.checks == cron


def test_a_file_that_is_no_toml_is_refused_with_the_line(folder: Path) -> None:
    write(folder, "[kafka]\nbootstrap_servers\n")
    assert refusal().startswith("settings cannot be read: Expected '=' after a key in a key/value pair (at line 2")


def test_settings_cannot_be_changed_afterwards() -> None:
    settings = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.table_root = Path("/other")


def test_the_address_of_the_webhook_is_a_reference_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_HEALTH__SECRETS__WEBHOOK", "env:HOOK")
    assert load_settings().health.secrets == {"webhook": "env:HOOK"}
    monkeypatch.setenv("LOCKSTEP_HEALTH__SECRETS__WEBHOOK", "https://hooks.example/canary-42")
    said = refusal()
    assert ("does not name the place of the secret" in said, "canary" in said) == (True, False)
