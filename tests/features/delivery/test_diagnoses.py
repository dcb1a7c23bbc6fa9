"""`lockstep doctor` for delivery targets: each fault with its field, value and next step; nothing is changed."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lockstep.delivery import Delivery, KafkaTopic, PostgresTable, Webhook
from lockstep.features.delivery import kafka_setup
from lockstep.features.delivery.deliver import run_delivery
from lockstep.features.delivery.diagnoses import check_deliveries, judge_rights
from lockstep.features.delivery.targets import DeclaredDelivery, open_target
from lockstep.operations.doctor.diagnosis import Diagnosis, Level
from lockstep.settings import KafkaSettings, Settings
from tests.features.delivery.postgres_rows import VARIABLE, execute
from tests.features.delivery.receiver import AUTHORIZATION, CANARY, SECRET, URL, receiving
from tests.support.kept_stream import keeping, script
from tests.support.offline_stream import Offline
from tests.support.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.feed import Feed

PHRASE = "a phrase"


KEY: dict[str, Any] = {"key": ("_session", "name"), "removed": ""}


def declare(target: KafkaTopic | PostgresTable | Webhook, offline: Offline | None = None) -> DeclaredDelivery:
    delivery = Delivery(name="moves", target=target)
    stream = keeping() if offline is None else offline.stream
    return DeclaredDelivery(delivery, dataclasses.replace(stream, deliveries=(delivery,)))


def diagnose(declared: DeclaredDelivery, kafka: KafkaSettings | None = None) -> list[Diagnosis]:
    found = list(check_deliveries({"keeping": declared.stream}, Settings(kafka=kafka or KafkaSettings())))
    assert {each.check for each in found} == {"delivery moves"}
    assert all(each.next_step for each in found if each.level is not Level.OK)
    return found


def list_bad(found: list[Diagnosis]) -> list[str]:
    return [f"{each.level.value}: {each.found}" for each in found if each.level is not Level.OK]


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    made = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    made.run(*script())
    return made


def test_a_topic_is_tried_without_fencing_the_run_that_delivers_to_it(
    feed: Feed, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = KafkaSettings(bootstrap_servers=feed.bootstrap_servers)
    settings = Settings(kafka=kafka, table_root=offline.folders.root)
    target = KafkaTopic(topic=f"{feed.family}.rows", tokens=f"{feed.family}.tokens")
    declared = declare(target, offline)
    assert list_bad(diagnose(declared, kafka)) == [f"error: delivery moves: topic {feed.family}.rows does not exist"]
    feed.create("rows", 2)
    single = "error: delivery moves: topic"
    first = diagnose(declared, kafka)
    assert [each for each in list_bad(first) if "replication.factor" not in each] == []
    assert f"KafkaTopic.tokens = {feed.family}.tokens does not exist: the first run creates it" in first[1].found
    run_delivery(declared, settings, stop=threading.Event())
    held = open_target(declared, settings)
    found = diagnose(declared, kafka)
    assert list_bad(found) == [
        f"warning: replication.factor of {feed.family}.{name} is 1: with its disk the delivered rows are lost"
        for name in ("rows", "tokens")
    ]
    assert "its position is after batch 4, with the topic of now" in {each.found for each in found}
    token = held.token
    assert token is not None
    held.write((), token)  # the run was not fenced
    held.close()
    with monkeypatch.context() as patch:
        patch.setattr(kafka_setup, "TRANSACTION_MS", 2_000_000_000)
        (bad,) = [each for each in diagnose(declared, kafka) if each.level is Level.ERROR]
        assert "the brokers allow no transactions" in bad.found
        assert "transaction.max.timeout.ms" in bad.next_step
    feed.grow(f"{feed.family}.rows", 3)
    (grown,) = [each for each in list_bad(diagnose(declared, kafka)) if "had 2 partitions, and has 3" in each]
    assert grown.startswith(single)


def test_a_missing_right_on_a_topic_is_named_and_none_is_guessed() -> None:
    (missing,) = judge_rights("delivery moves", "rows", ("WRITE", "DESCRIBE"), {"DESCRIBE"})
    assert (missing.level, missing.found) == (Level.ERROR, "this user lacks WRITE on topic rows")
    assert missing.next_step == "grant WRITE on rows"
    assert list(judge_rights("delivery moves", "rows", ("WRITE",), {"WRITE", "READ"})) == []
    assert list(judge_rights("delivery moves", "rows", ("WRITE",), ())) == []


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres.start() as server:
        yield server


def test_a_role_without_rights_is_told_each_one_until_it_has_them(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = postgres.make_database("diagnosed")
    execute(
        owner,
        f"CREATE ROLE writer LOGIN PASSWORD '{PHRASE}'",
        "CREATE SCHEMA market",
        "REVOKE TEMPORARY ON DATABASE diagnosed FROM PUBLIC",
        "CREATE TABLE market.lockstep_deliveries (number int)",
    )
    monkeypatch.setenv(VARIABLE, make_conninfo(owner, user="writer", password=PHRASE))
    declared = declare(PostgresTable(table="market.moves", connection=f"env:{VARIABLE}", key=("_session", "name")))
    granted = list[str]()
    while errors := [each for each in diagnose(declared) if each.level is Level.ERROR]:
        assert f"PostgresTable.table = market.moves: the user of env:{VARIABLE} lacks" in errors[0].found
        granted.append(errors[0].next_step.removesuffix(" TO its role"))
        execute(owner, f"{granted[-1]} TO writer")
    assert granted == [
        "GRANT USAGE ON SCHEMA market",
        "GRANT CREATE ON SCHEMA market",
        "GRANT SELECT ON TABLE market.lockstep_deliveries",
        "GRANT INSERT ON TABLE market.lockstep_deliveries",
        "GRANT UPDATE ON TABLE market.lockstep_deliveries",
        "GRANT TEMPORARY ON DATABASE diagnosed",
    ]
    with psycopg.connect(owner) as connection:
        assert connection.execute("SELECT to_regclass('market.moves')").fetchone() == (None,)
    monkeypatch.setenv(VARIABLE, make_conninfo(owner, user="nobody_of_this_name"))
    assert "password authentication failed" in list_bad(diagnose(declared))[0]
    monkeypatch.setenv(VARIABLE, owner)
    missing = declare(PostgresTable(table="nowhere.moves", connection=f"env:{VARIABLE}"))
    assert list_bad(diagnose(missing)) == ["error: PostgresTable.table = nowhere.moves: its schema does not exist"]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("", "nothing on this machine"),
        (f"ftp://{CANARY}", "no http:// or https:// address"),
        (f"https:///{CANARY}", "has no host"),
        (f"https://[{CANARY}]/", "has no host"),
        (f"https://127.0.0.1:{CANARY}/", "has no host, another port than a number"),
        (f"https://{CANARY}@127.0.0.1/", "has no host, another port than a number, or credentials"),
        (f"https://{CANARY}.invalid/", "has no address"),
        (f"http://192.0.2.1/{CANARY}", f"everybody on the way reads env:{AUTHORIZATION}"),
        (f"https://192.0.2.1/{CANARY}", ""),
    ],
)
def test_a_webhook_is_resolved_and_nothing_is_sent(address: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(URL, address)
    monkeypatch.setenv(AUTHORIZATION, SECRET)
    found = diagnose(declare(Webhook(url=f"env:{URL}", authorization=f"env:{AUTHORIZATION}")))
    assert CANARY not in repr(found)
    if problem:
        assert problem in list_bad(found)[0]
        assert f"env:{URL}" in found[0].found
    else:
        assert list_bad(found) == []


def test_a_receiver_gets_no_request_of_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv(URL, receiver.url)
        (found,) = diagnose(declare(Webhook(url=f"env:{URL}")))
        assert (found.level, receiver.arrivals) == (Level.OK, [])
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "")
        (found,) = diagnose(declare(Webhook(url=f"env:{URL}")))
        assert found.found == f"Webhook.url, of env:{URL}, is reached by the proxy of the environment; nothing was sent"
        monkeypatch.setenv(URL, f"http://192.0.2.1/{CANARY}")
        monkeypatch.setenv(AUTHORIZATION, SECRET)
        (found,) = diagnose(declare(Webhook(url=f"env:{URL}", authorization=f"env:{AUTHORIZATION}")))
        assert f"everybody on the way reads env:{AUTHORIZATION}" in found.found
