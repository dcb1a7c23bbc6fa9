"""Deliveries to tables of a real Postgres: each row once, or the last row of each key, killed at any step."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from lockstep import Kind
from lockstep.delivery import (
    DeliveryFenced,
    FirstRows,
    NewColumns,
    RowUndeliverable,
    TargetInterrupted,
    TargetRefused,
)
from lockstep.errors import SettingsError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.delivery import deliver as delivering_run
from lockstep.features.delivery import postgres_target
from lockstep.features.delivery.changes import HaltReason
from lockstep.features.delivery.events import read_history
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.features.delivery.postgres_rows import RowValues
from lockstep.features.delivery.postgres_target import PostgresConnection
from lockstep.features.delivery.targets import open_target
from lockstep.operations.lifecycle import close_hour
from lockstep.settings import Settings
from lockstep.verify.report import InvariantStatus
from tests.features.delivery.killed_postgres import STEPS
from tests.features.delivery.postgres_rows import (
    VARIABLE,
    Level,
    Part,
    Side,
    Wide,
    assert_appended,
    declare,
    deliver,
    execute,
    make_row,
    prove,
    read_rows,
    to_alert,
    to_current,
    to_nul,
)
from tests.support.installation import wait_until
from tests.support.kept_stream import Sent, keeping, message, script
from tests.support.offline_stream import Offline
from tests.support.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from subprocess import Popen

    from lockstep.delivery import DeliveryToken
    from lockstep.features.delivery.targets import DeclaredDelivery

pytestmark = pytest.mark.usefixtures("url")

CANARY = "canary-7f3a"
PHRASE = "a phrase"


AGAIN = (
    "INSERT INTO readings SELECT name, value, total, 0, _generation, _batch, _topic, _topic_id, _partition, "
    "_emit_offset, _row, _session FROM readings WHERE _number = 2"
)
PROVEN = (InvariantStatus.PROVEN, "")
CURRENT: dict[str, Any] = {"select": to_current, "key": ("_session", "name"), "removed": "value"}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres.start() as server:
        yield server


@pytest.fixture
def url(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database for the deliveries of a test."""
    made = postgres.make_database("delivered")
    monkeypatch.setenv(VARIABLE, made)
    return made


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    """Tables of a stream with four batches and four rows."""
    made = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    made.run(*script())
    return made


def make_batches(seed: int, batches: int = 5) -> list[dict[str, list[Sent]]]:
    """Return batches of updates of three sessions in two topics: names change and are removed repeatedly."""
    chosen = random.Random(seed)  # noqa: S311  # no secret
    sequences = dict[str, int]()
    made = list[dict[str, list[Sent]]]()
    for _ in range(batches):
        batch = dict[str, list[Sent]]()
        for _ in range(chosen.randint(1, 12)):
            session = chosen.choice("pqr")
            sequences[session] = sequences.get(session, 0) + 1
            kind = Kind.SNAPSHOT if sequences[session] == 1 else Kind.UPDATE
            values = dict.fromkeys(chosen.sample("xyz", chosen.randint(1, 3)), chosen.randint(1, 5))
            topic = "kept.one" if session == "p" else "kept.two"
            batch.setdefault(topic, []).append((session, message(kind, sequences[session], **values)))
        made.append(batch)
    return made


def read_current(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Return the last value by session and name, from the appended rows in the order of their batches."""
    current = dict[tuple[str, str], int]()
    order = ("_batch", "_topic_id", "_partition", "_emit_offset", "_row")
    for row in sorted(rows, key=lambda each: tuple(each[name] for name in order)):
        key = (row["_session"], row["name"])
        current.pop(key, None)
        if row["total"] % 3:
            current[key] = row["value"]
    return current


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_appended_once_and_keys_have_their_last_row(url: str, tmp_path: Path, seed: int) -> None:
    offline = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    appending = declare(offline, transaction_rows=3)
    replacing = declare(offline, "current", name="current", transaction_rows=2, **CURRENT)
    for number, batch in enumerate(make_batches(seed)):
        offline.run(batch)
        if number % 2:
            deliver(offline, appending)
        if number == 2:
            close_hour(offline.folders)
            compact_stream(offline.folders)
            deliver(offline, replacing)
    assert deliver(offline, appending).batch == deliver(offline, replacing).batch == 5
    assert deliver(offline, appending).rows == deliver(offline, replacing).rows == 0
    rows = read_rows(url)
    assert_appended(offline, rows)
    current = {(row["_session"], row["name"]): row["value"] for row in read_rows(url, "current")}
    assert current == read_current(rows)
    assert 0 < len(current) < len({(row["_session"], row["name"]) for row in rows})
    for declared in (appending, replacing):
        proof = prove(offline, declared)
        assert (proof.status, proof.reason) == PROVEN


def test_a_key_of_two_topics_has_the_row_of_the_later_batch(url: str, tmp_path: Path) -> None:
    """In one transaction with both batches, rows of the first topic would precede rows of the second."""
    offline = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    earlier = [("q", message(Kind.SNAPSHOT, 1, x=1)), ("q", message(Kind.UPDATE, 2, x=1))]
    later = [("p", message(Kind.SNAPSHOT, 1, x=1)), ("p", message(Kind.UPDATE, 2, x=3))]
    offline.run({"kept.two": earlier}, {"kept.one": later})
    deliver(offline, declare(offline, "current", name="current", **(CURRENT | {"key": ("name",)})))
    assert [(row["name"], row["value"]) for row in read_rows(url, "current")] == [("x", 4)]


def test_the_row_of_the_delivery_shows_its_position(url: str, offline: Offline) -> None:
    deliver(offline, declare(offline))
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT target, delivery, epoch, batch, rows FROM lockstep_deliveries").fetchone()
    assert row == ("readings", "readings", 1, 4, 4)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
decimals = st.decimals(-(10**28) + 1, 10**28 - 1, places=10)
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001  # bounds
parts = st.builds(Part, texts, st.floats(allow_nan=False, allow_infinity=False), decimals)
wide = st.builds(
    Wide,
    text=texts,
    data=st.binary(),
    flag=st.booleans(),
    whole=st.integers(-(2**63), 2**63 - 1),
    small=st.integers(-(2**31), 2**31 - 1),
    number=st.floats(),
    price=decimals,
    at=times,
    day=st.dates(),
    side=st.sampled_from(Side),
    level=st.sampled_from(Level),
    word=st.sampled_from(["a", "b"]),
    part=parts,
    parts=st.lists(parts, max_size=3),
    words=st.dictionaries(texts, st.integers(-(2**63), 2**63 - 1), max_size=3),
    note=st.none() | texts,
    last=st.none() | times,
)


class Writing:
    """Writes rows without a table."""

    def __init__(self, declared: DeclaredDelivery, value: type[msgspec.Struct], token: DeliveryToken) -> None:
        target: Any = declared.delivery.target
        self.connection = PostgresConnection("readings", target, value)
        self.columns = RowValues(value).columns
        self.token = token

    def write(self, values: Sequence[msgspec.Struct]) -> None:
        self.connection.write([make_row(value, number) for number, value in enumerate(values)], self.token)


@pytest.fixture
def token(offline: Offline) -> DeliveryToken:
    """A token of the stream, made by another delivery."""
    other = declare(offline, "other", name="other", first_rows=FirstRows.NEW)
    deliver(offline, other)
    connection = open_target(other, Settings())
    connection.close()
    assert connection.token is not None
    return msgspec.structs.replace(connection.token, delivery="readings")


def test_values_of_all_types_are_stored_exactly(url: str, offline: Offline, token: DeliveryToken) -> None:
    writing = Writing(declare(offline), Wide, token)
    written = [0]
    names = [column.name for column in writing.columns]
    with psycopg.connect(url, autocommit=True) as reader:
        reader.execute("SET TimeZone = 'Asia/Kolkata'")

        @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(st.lists(wide, min_size=1, max_size=5))
        def check(values: list[Wide]) -> None:
            before = written[0]
            writing.write(values)
            written[0] += len(values)
            rows = reader.execute("SELECT * FROM readings WHERE _number > %s ORDER BY _number", (before,)).fetchall()
            found = [dict(zip(names, row, strict=True)) for row in rows]
            for value, row in zip(values, found, strict=True):
                plain = {"side": value.side.value, "level": value.level.value}
                for name in ("text", "data", "flag", "whole", "small", "price", "at", "day", "word", "note", "last"):
                    plain[name] = getattr(value, name)
                assert {name: row[name] for name in plain} == plain
                assert repr(row["number"]) == repr(value.number)
                assert row["words"] == value.words
                assert [part["name"] for part in row["parts"]] == [part.name for part in value.parts]
                assert float(row["part"]["ratio"]) == value.part.ratio

        check()
    writing.connection.close()


def make_wide(**changed: Any) -> Wide:
    plain = {
        "text": "t",
        "data": b"",
        "flag": True,
        "whole": 1,
        "small": 1,
        "number": 1.0,
        "price": Decimal(1),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "side": Side.BUY,
        "level": Level.LOW,
        "word": "a",
        "part": Part("p", 1.0, Decimal(1)),
        "parts": [],
        "words": {},
    }
    values: Any = plain | changed
    return Wide(**values)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("text", "a\0b", "Postgres refuses it"),
        ("text", "\ud800", "UnicodeEncodeError"),
        ("small", 2**31, "not an integer of 32 bits"),
        ("whole", 2**63, "too big"),
        ("whole", "one", "TypeError|an integer"),
        ("price", Decimal("0.12345678901"), "10 decimal places"),
        ("price", Decimal(10) ** 28, "numeric field overflow"),
        ("at", datetime(2026, 1, 1), "offset-naive|TypeError"),  # noqa: DTZ001  # without a zone
        ("words", {"a": "\0"}, "Postgres refuses it"),
    ],
)
def test_a_value_that_no_column_holds_is_named_by_its_row(
    url: str, offline: Offline, token: DeliveryToken, name: str, value: Any, problem: str
) -> None:
    writing = Writing(declare(offline), Wide, token)
    values = [make_wide() for _ in range(7)]
    values[4] = make_wide(**{"text": CANARY, name: value})
    with pytest.raises(RowUndeliverable, match=problem) as refused:
        writing.write(values)
    assert refused.value.row.emit_offset == 4
    assert CANARY not in "".join(traceback.format_exception(refused.value))  # Dagster stores this text
    writing.write([make_wide()])
    assert [row["_number"] for row in read_rows(url)] == [1]
    writing.connection.close()


def test_a_constraint_of_the_database_names_the_row(url: str, offline: Offline) -> None:
    deliver(offline, declare(offline, first_rows=FirstRows.NEW))
    execute(url, "ALTER TABLE readings ADD CHECK (value < 9)")
    offline.run(*make_later(4))
    for _ in range(2):
        with pytest.raises(DeliveryHalted, match="violates check constraint") as halted:
            deliver(offline, declare(offline, first_rows=FirstRows.NEW))
        assert halted.value.reason is HaltReason.ROW
        assert "Failing row contains" not in "".join(traceback.format_exception(halted.value))
    execute(url, "ALTER TABLE readings DROP CONSTRAINT readings_value_check")
    assert deliver(offline, declare(offline)).rows == 8


def test_a_row_that_no_text_column_holds_halts_with_its_identity(offline: Offline, url: str) -> None:
    with pytest.raises(DeliveryHalted, match=r"id-of-kept.one/0/5/0: Postgres refuses it"):
        deliver(offline, declare(offline, select=to_nul))
    assert read_rows(url) == []


def test_a_delivery_that_is_killed_at_any_step_is_continued(url: str, offline: Offline) -> None:
    offline.run(*make_later(6))
    assert run_children(offline, [(step, 2) for step in STEPS]) == [-signal.SIGKILL] * len(STEPS)
    deliver(offline, declare(offline))
    assert_appended(offline, read_rows(url))
    proof = prove(offline, declare(offline))
    assert (proof.status, proof.reason) == PROVEN


def make_later(batches: int, session: str = "later") -> list[dict[str, list[Sent]]]:
    """Return batches of a session with two rows each, to follow the script."""
    made = list[dict[str, list[Sent]]]()
    for number in range(batches):
        sent = [(session, message(Kind.SNAPSHOT, 1, x=1))] if not number else []
        sent += [(session, message(Kind.UPDATE, 2 + 2 * number + more, x=number + 1)) for more in range(2)]
        made.append({"kept.three": sent})
    return made


def start_children(offline: Offline, kind: str, steps: Sequence[tuple[str, int]], gate: str = "") -> Popen[bytes]:
    """Run deliveries in sequence, each in a process that dies or waits at a step."""
    spelled = ",".join(f"{step}:{writes}" for step, writes in steps)
    command = [sys.executable, "-m", "tests.features.delivery.killed_postgres", str(offline.root), kind, spelled, gate]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run_children(offline: Offline, steps: Sequence[tuple[str, int]], kind: str = "appended") -> list[int]:
    """Return the exit codes of the deliveries."""
    with start_children(offline, kind, steps) as children:
        output, errors = children.communicate(timeout=600)
    assert children.returncode == 0, errors.decode()
    return [int(line) for line in output.split()]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, CURRENT], ids=["appended", "replaced"])
def test_a_hundred_random_kills_leave_each_row_once(url: str, offline: Offline, options: dict[str, Any]) -> None:
    chosen = random.Random(54)  # noqa: S311  # no secret
    declared = declare(offline, "readings", **options)
    which = "current" if options else "appended"
    offline.run(*make_later(100))
    steps = [(chosen.choice(STEPS), chosen.randint(1, 5)) for _ in range(100)]
    codes = run_children(offline, steps, which)
    assert set(codes) <= {0, -signal.SIGKILL}
    assert codes.count(-signal.SIGKILL) > 50
    deliver(offline, declared)
    if not options:
        assert_appended(offline, read_rows(url))
    proof = prove(offline, declared)
    assert (proof.status, proof.reason) == PROVEN


def test_a_zombie_with_an_open_transaction_is_ended_and_repeats_nothing(
    url: str, offline: Offline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_target, "PATIENCE_SECONDS", 0.2)
    with start_children(offline, "appended", [("copied", 2)], str(tmp_path)) as zombie:
        wait_until((tmp_path / "reached").exists, "the zombie")
        since = time.monotonic()
        assert deliver(offline, declare(offline)).delivered == 4
        assert time.monotonic() - since < postgres_target.TRANSACTION_SECONDS / 2
        (tmp_path / "go").touch()
        output, errors = zombie.communicate(timeout=60)
    assert int(output) == 1
    assert b"DeliveryFenced" in errors
    assert_appended(offline, read_rows(url))


def test_the_first_of_two_claims_can_write_no_more(url: str, offline: Offline) -> None:
    declared = declare(offline)
    deliver(offline, declared)
    first = open_target(declared, Settings())
    assert first.token is not None
    second = open_target(declared, Settings())
    with pytest.raises(DeliveryFenced):
        first.write((), first.token)
    second.write((), first.token)
    assert second.token is not None
    assert second.token.epoch == 3
    first.close()
    second.close()
    assert len(read_rows(url)) == 4


def test_an_unknown_outcome_of_a_commit_is_settled_by_the_token(
    url: str, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PostgresConnection.write
    lost = [False, True, False, True]

    def lose_answer(self: PostgresConnection, *arguments: Any) -> None:
        write(self, *arguments)
        if lost and lost.pop(0):
            raise TargetInterrupted("readings", "the answer was lost")

    monkeypatch.setattr(PostgresConnection, "write", lose_answer)
    assert deliver(offline, declare(offline, transaction_rows=1)).claims == 3
    assert_appended(offline, read_rows(url))


def test_a_server_that_crashes_and_comes_back_is_awaited(
    url: str, postgres: Postgres, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(offline, declare(offline))
    offline.run(*make_later(1))
    back = threading.Event()
    wait = threading.Event.wait

    def come_back(self: threading.Event, timeout: float | None = None) -> bool:
        back.set()
        return wait(self, timeout)

    with pytest.MonkeyPatch.context() as patch, postgres.stopped():
        patch.setattr(delivering_run, "BACK_OFF_SECONDS_MAX", 0.01)
        with pytest.raises(TargetInterrupted):
            deliver(offline, declare(offline))
    monkeypatch.setattr(threading.Event, "wait", come_back)
    assert deliver(offline, declare(offline)).rows == 2
    assert_appended(offline, read_rows(url))


def test_a_database_that_was_restored_from_a_backup_is_noticed_and_filled_again(
    url: str, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    deliver(offline, declare(offline))
    execute(
        url,
        "CREATE TABLE saved_rows AS SELECT * FROM readings",
        "CREATE TABLE saved_tokens AS SELECT * FROM lockstep_deliveries",
    )
    offline.run(*make_later(2))
    deliver(offline, declare(offline))
    execute(
        url,
        "DELETE FROM readings",
        "INSERT INTO readings SELECT * FROM saved_rows",
        "DELETE FROM lockstep_deliveries",
        "INSERT INTO lockstep_deliveries SELECT * FROM saved_tokens",
    )
    assert deliver(offline, declare(offline)).rows == 4
    assert_appended(offline, read_rows(url))
    newest = read_history(offline.folders.root, "readings").events[0]
    assert (newest.event, newest.batch) == ("restored", 4)
    assert "went back: it had claim 2, and has claim 1" in newest.detail
    assert [record.levelname for record in caplog.records if "went back" in record.getMessage()] == ["WARNING"]
    deliver(offline, declare(offline))
    assert len(read_history(offline.folders.root, "readings").events) == 2


def test_tokens_that_were_restored_without_their_rows_are_refused(url: str, offline: Offline) -> None:
    deliver(offline, declare(offline))
    execute(url, "CREATE TABLE saved AS SELECT * FROM lockstep_deliveries")
    offline.run(*make_later(1))
    deliver(offline, declare(offline))
    execute(url, "DELETE FROM lockstep_deliveries", "INSERT INTO lockstep_deliveries SELECT * FROM saved")
    with pytest.raises(TargetRefused, match="has its token at row 4"):
        deliver(offline, declare(offline))
    execute(url, "DELETE FROM lockstep_deliveries")
    with pytest.raises(TargetRefused, match="has no token"):
        deliver(offline, declare(offline))


def test_a_table_that_was_dropped_is_refused(url: str, offline: Offline) -> None:
    deliver(offline, declare(offline))
    execute(url, "DROP TABLE readings")
    with pytest.raises(TargetRefused, match="was dropped, and 4 rows were delivered"):
        deliver(offline, declare(offline))


def test_a_new_optional_column_is_added_or_refused_as_declared(url: str, offline: Offline) -> None:
    deliver(offline, declare(offline))
    offline.run(*make_later(1))
    refusing = declare(offline, select=to_alert, new_columns=NewColumns.REFUSE)
    with pytest.raises(TargetRefused, match="has no column comment") as refused:
        deliver(offline, refusing)
    assert "ADD COLUMN comment text" in refused.value.next_step
    assert deliver(offline, declare(offline, select=to_alert)).rows == 2
    assert [row["comment"] for row in read_rows(url)] == [None] * 4 + ["later"] * 2
    proof = prove(offline, declare(offline, select=to_alert))
    assert (proof.status, "4 rows were made by other functions" in proof.reason) == (InvariantStatus.NOT_PROVEN, True)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("ALTER TABLE readings ALTER COLUMN value TYPE numeric", "column value of table public.readings is numeric"),
        ("ALTER TABLE readings ALTER COLUMN value TYPE integer", "is integer, not bigint"),
        ("ALTER TABLE readings DROP COLUMN _session", "has no column _session"),
        (
            "ALTER TABLE readings ADD more text NOT NULL DEFAULT ''; ALTER TABLE readings ALTER more DROP DEFAULT",
            "column more of table readings is NOT NULL",
        ),
    ],
)
def test_a_table_with_other_columns_is_refused_by_name(
    url: str, offline: Offline, statement: str, problem: str
) -> None:
    deliver(offline, declare(offline))
    execute(url, *statement.split("; "))
    with pytest.raises(TargetRefused, match=problem):
        deliver(offline, declare(offline))


def test_a_user_without_rights_is_refused_with_the_reason(
    url: str, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(url, "DROP ROLE IF EXISTS reader", f"CREATE ROLE reader LOGIN PASSWORD '{PHRASE}'")
    monkeypatch.setenv(VARIABLE, make_conninfo(url, user="reader", password=PHRASE))
    with pytest.raises(TargetRefused, match="permission denied"):
        deliver(offline, declare(offline))
    monkeypatch.setenv(VARIABLE, url.replace("/delivered", "/nothing"))
    monkeypatch.setattr(delivering_run, "BACK_OFF_SECONDS_MAX", 0.01)
    with pytest.raises(TargetInterrupted, match="does not exist"):
        deliver(offline, declare(offline))
    monkeypatch.setenv(VARIABLE, "password=no secret host")
    with pytest.raises(TargetRefused, match="is not libpq's") as wrong:
        deliver(offline, declare(offline))
    assert "no secret" not in str(wrong.value)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(SettingsError, match="nothing on this machine"):
        deliver(offline, declare(offline))


def test_a_table_of_another_delivery_or_another_key_is_refused_before_it_is_fenced(offline: Offline) -> None:
    deliver(offline, declare(offline))
    held = open_target(declare(offline), Settings())
    with pytest.raises(TargetRefused, match="is the target of delivery readings"):
        deliver(offline, declare(offline, name="others"))
    with pytest.raises(TargetRefused, match="has the key none, and"):
        deliver(offline, declare(offline, key=("name",)))
    assert held.token is not None
    held.write((), held.token)
    held.close()


def test_a_table_of_the_user_needs_a_unique_index_for_its_key(url: str, offline: Offline) -> None:
    deliver(offline, declare(offline, "current", name="current", **CURRENT))
    execute(url, "ALTER TABLE current DROP CONSTRAINT current_pkey")
    with pytest.raises(TargetRefused, match="has no unique index on _session, name"):
        deliver(offline, declare(offline, "current", name="current", **CURRENT))
    execute(url, "CREATE UNIQUE INDEX ON current (name, _session)")
    deliver(offline, declare(offline, "current", name="current", **CURRENT))


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM readings WHERE _number = 2", {"1 missing"}),
        ("UPDATE readings SET value = value + 1 WHERE _number = 3", {"1 changed"}),
        ("UPDATE readings SET _session = 'b' WHERE _number = 3", {"1 changed"}),
        ("UPDATE readings SET _emit_offset = 99 WHERE _number = 3", {"1 missing", "1 extra"}),
        ("UPDATE readings SET _number = -_number", {"2 disordered"}),
        ("INSERT INTO readings SELECT 'n', 1, 1, 9, 1, 2, 't', 'id', 0, 1, 1, 's'", {"1 foreign"}),
        (
            AGAIN,
            {"1 repeated", "2 disordered"},
        ),
    ],
)
def test_the_proof_finds_each_difference_of_appended_rows(
    url: str, offline: Offline, statement: str, found: set[str]
) -> None:
    deliver(offline, declare(offline))
    execute(url, *statement.split("; "))
    proof = prove(offline, declare(offline))
    assert proof.status is InvariantStatus.VIOLATED
    assert found <= set(proof.reason.split("; first")[0].split(", ")), proof.reason


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM current WHERE _number = {}", "1 missing"),
        ("UPDATE current SET value = value + 1 WHERE _number = {}", "1 changed"),
        ("UPDATE current SET name = 'other' WHERE _number = {}", "1 missing, 1 extra"),
    ],
)
def test_the_proof_finds_each_difference_of_keys(url: str, offline: Offline, statement: str, found: str) -> None:
    declared = declare(offline, "current", name="current", **CURRENT)
    deliver(offline, declared)
    number = read_rows(url, "current")[0]["_number"]
    execute(url, statement.format(number))
    proof = prove(offline, declared)
    assert (proof.status, proof.reason.split("; first")[0]) == (InvariantStatus.VIOLATED, found)


def test_the_proof_of_keys_counts_the_rows_of_a_write_in_progress(
    offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline.run(*make_later(1))
    declared = declare(offline, "current", name="current", transaction_rows=1, **CURRENT)
    write = PostgresConnection.write
    left = [2]

    def stop_in_the_step(self: PostgresConnection, *arguments: Any) -> None:
        if not left[0]:
            raise DeliveryFenced("current")
        left[0] -= 1
        write(self, *arguments)

    monkeypatch.setattr(PostgresConnection, "write", stop_in_the_step)
    for _ in range(5):
        with pytest.raises(DeliveryFenced):
            deliver(offline, declared)
        proof = prove(offline, declared)
        assert (proof.status, proof.reason) == PROVEN
        left[0] = 2
