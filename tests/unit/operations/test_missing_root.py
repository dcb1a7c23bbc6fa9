"""A table root in the settings that is missing: its disk may not be mounted, and nothing calls it new."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.operations.alarms import AlarmKind
from lockstep.operations.doctor.machine import check_table_root
from lockstep.operations.inspect.health import read_health
from lockstep.operations.inspect.history import read_history
from lockstep.operations.inspect.status import UNREADABLE, read_overview, read_status
from lockstep.operations.inspect.streams import list_declared_streams
from lockstep.operations.lifecycle import reset_new
from lockstep.operations.query import AsOf, query_derived, query_sql, query_stream
from lockstep.operations.repair import repair_stream
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import NoTable, has_table, open_table
from lockstep.settings import DEFAULT_TABLE_ROOT, KafkaSettings, Settings
from lockstep.table.layout import StreamFolders, TableRootMissing
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding

if TYPE_CHECKING:
    from collections.abc import Callable

STREAM = adding(r"nothing\..+")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return in_root(tmp_path / "disk" / "tables")


def in_root(root: Path) -> Settings:
    """Return settings with a Kafka that refuses connections."""
    return Settings(table_root=root, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1", timeout_seconds=1))


READS: dict[str, Callable[[Settings], object]] = {
    "status": lambda settings: read_status(StreamHandle(STREAM, settings)),
    "history": lambda settings: read_history(StreamFolders("adding", settings.table_root), last=1),
    "repair": lambda settings: repair_stream(StreamFolders("adding", settings.table_root), apply=False),
    "a table": lambda settings: open_table(StreamFolders("adding", settings.table_root)),
    "maintenance": lambda settings: has_table(StreamFolders("adding", settings.table_root)),
    "rows": lambda settings: query_stream("adding", settings.table_root, AsOf(), limit=1),
    "SQL": lambda settings: query_sql("SELECT 1", ["adding"], settings.table_root, AsOf(), limit=1),
    "a derived table": lambda settings: query_derived("totals", settings.table_root, AsOf(), limit=1),
    "verify": lambda settings: verify_stream(STREAM, StreamFolders("adding", settings.table_root), settings.kafka),
    "reset": lambda settings: reset_new("adding", settings),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_missing_root_is_named_with_the_next_step(read: Callable[[Settings], object], settings: Settings) -> None:
    with pytest.raises(TableRootMissing) as missing:
        read(settings)
    root = settings.table_root
    assert missing.value.problem == f"the table root {root} does not exist"
    assert missing.value.next_step == f"mount its disk, or correct table_root; a new installation: mkdir -p {root}"
    assert not root.exists()


def test_the_command_that_makes_a_missing_root_takes_any_path() -> None:
    *_, said, path = shlex.split(TableRootMissing(Path("/data/our tables")).next_step)
    assert (said, path) == ("-p", "/data/our tables")


def test_an_empty_root_and_the_default_one_before_the_first_start_are_a_new_installation(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.table_root.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for root in (settings.table_root, DEFAULT_TABLE_ROOT, DEFAULT_TABLE_ROOT.absolute()):
        assert not has_table(StreamFolders("adding", root))
        with pytest.raises(NoTable):
            read_status(StreamHandle(STREAM, in_root(root)))


def test_a_missing_root_is_an_alarm_of_each_stream_and_a_new_stream_none(settings: Settings) -> None:
    (alarm,) = read_health(StreamHandle(STREAM, settings)).alarms
    assert (alarm.kind, str(settings.table_root) in alarm.problem) == (AlarmKind.UNREADABLE, True)
    (shown,) = read_overview([STREAM], settings)
    assert (shown.desired, shown.needs_operator, shown.alarms[0].problem) == (UNREADABLE, True, alarm.problem)
    (listed,) = list_declared_streams({"adding": STREAM}, settings.table_root)
    assert (listed.desired, listed.reason) == (UNREADABLE, alarm.problem.removeprefix("the table cannot be read: "))
    settings.table_root.mkdir(parents=True)
    assert read_health(StreamHandle(STREAM, settings)).alarms == ()
    (shown,) = read_overview([STREAM], settings)
    assert shown.desired == "no table yet"
    with pytest.raises(NoTable):
        read_status(StreamHandle(STREAM, settings))


def test_doctor_warns_of_a_missing_root_that_could_be_made(settings: Settings) -> None:
    found = {each.check: each for each in check_table_root(settings.table_root)}
    assert "does not exist" in found["table root"].found
    settings.table_root.mkdir(parents=True)
    assert "can be written" in {each.check: each for each in check_table_root(settings.table_root)}["table root"].found
