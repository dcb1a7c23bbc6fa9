"""A delivery as a follower: lag, retention and erasure; and a user's target with the code of its page."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from datetime import UTC, datetime, timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from dagster import Failure, materialize
from msgspec.structs import replace
from typer.testing import CliRunner

from lockstep import Kind
from lockstep.cli.app import app
from lockstep.delivery import (
    Delivery,
    DeliveryFenced,
    FirstRows,
    KafkaTopic,
    Target,
    TargetConnection,
    TargetInterrupted,
)
from lockstep.features.delivery import asset, commands, kept_rows, stop_order
from lockstep.features.delivery.asset import make_delivery_asset
from lockstep.features.delivery.deliver import run_delivery as deliver
from lockstep.features.delivery.events import read_history
from lockstep.features.delivery.kept_rows import find_delivered_rows, find_droppable_hours
from lockstep.features.delivery.status import plan_delivery, read_deliveries, read_source_position
from lockstep.features.delivery.stop_order import start_delivery, stop_delivery
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.features.retention.rows import drop_old_rows
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.followers import DeclaredFollowers, compute_lag
from lockstep.operations.kept_rows import ErasedHours
from lockstep.operations.stream_table import open_table
from lockstep.settings import Settings
from lockstep.table.create import open_tables
from lockstep.table.follower_positions import FollowerName, read_position, write_position
from lockstep.table.live_files import LiveFiles
from tests.support.installation import wait_until
from tests.support.kept_stream import keeping, message, script
from tests.support.offline_stream import CLUSTER, Offline
from tests.support.plain_reader import read_table

PAGE = Path(__file__).parents[3] / "docs" / "how-to-add" / "target.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module in the code of the page."""
    file = tmp_path / "files_of_the_page.py"
    file.write_text(PAGE.read_text().partition("```python\n")[2].partition("```")[0])
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    """Tables of a stream with four batches."""
    made = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    made.run(*script())
    return made


def declare(offline: Offline, page: Any, **options: Any) -> DeclaredDelivery:
    target = page.Folder(str(offline.root / "archive"))
    delivery = Delivery(name="archive", target=target, **options)
    return DeclaredDelivery(delivery, dataclasses.replace(offline.stream, deliveries=(delivery,)))


def run(offline: Offline, declared: DeclaredDelivery) -> int:
    settings = Settings(table_root=offline.folders.root)
    return deliver(declared, settings, stop=threading.Event()).rows


def read_values(offline: Offline) -> list[Any]:
    files = sorted((offline.root / "archive").glob("*.json"))
    rows = list[Any]()
    for file in files:
        rows += json.loads(file.read_text())["rows"]
    return rows


def test_the_target_of_the_page_has_each_row_once(offline: Offline, page: Any) -> None:
    declared = declare(offline, page)
    assert run(offline, declared) == 4
    assert run(offline, declared) == 0
    names = ["name", "value", "total"]
    table = read_table(offline.folders.table).select(names).to_pylist()
    assert sorted(map(str, read_values(offline))) == sorted(map(str, table))


def test_the_target_of_the_page_fences_an_earlier_claim(offline: Offline, page: Any) -> None:
    declared = declare(offline, page)
    run(offline, declared)
    first = page.Folder(str(offline.root / "archive")).connect("archive")
    run(offline, declared)
    with pytest.raises(DeliveryFenced):
        first.write((), first.token)


def test_a_delivery_has_lag_before_and_after_its_runs(offline: Offline, page: Any) -> None:
    declared = declare(offline, page)
    root = offline.folders.root
    assert (plan_delivery(declared, root).batch, plan_delivery(declared, root).behind) == (None, 4)
    run(offline, declared)
    offline.run({"kept.one": [("a", b"{broken")]}, {"kept.two": [("a", b"{broken")]})
    (status,) = read_deliveries(DeclaredFollowers((declared.stream,), (), root))
    assert (status.kind, status.name, status.behind, status.problem) == ("delivery", "archive", 2, "")
    assert status.next_run == "delivers 2 batches"
    run(offline, declared)
    assert plan_delivery(declared, root).behind == 0


def test_a_stream_without_a_table_waits(tmp_path: Path, page: Any) -> None:
    offline = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    declared = declare(offline, page)
    assert plan_delivery(declared, offline.folders.root).next_run == "waits for a table"
    done = deliver(declared, Settings(table_root=offline.folders.root), stop=threading.Event())
    assert (done.is_waiting, done.claims) == (True, 0)


def test_a_delivery_starts_when_a_run_has_claimed_the_table(tmp_path: Path, page: Any) -> None:
    """Before that the table has no id: a delivery started then would halt for ever with a replaced table."""
    offline = Offline(keeping(), tmp_path)
    declared = declare(offline, page)
    open_tables(offline.folders, make_table_schema(declared.stream.types.row), CLUSTER)
    done = deliver(declared, Settings(table_root=offline.folders.root), stop=threading.Event())
    assert (done.is_waiting, done.claims) == (True, 0)
    offline.run(*script())
    run(offline, declared)
    assert plan_delivery(declared, offline.folders.root).behind == 0


def test_a_stopped_delivery_stays_stopped_under_dagster_and_by_hand_until_it_is_started(
    offline: Offline, page: Any
) -> None:
    declared = declare(offline, page)
    root = offline.folders.root
    assert stop_delivery(root, "archive", 0)
    assert not stop_delivery(root, "archive", 0)
    made = make_delivery_asset(declared.stream, Settings(table_root=root), ["team:a"])
    (event,) = materialize([made]).asset_materializations_for_node("keeping__delivery")
    assert {name: value.value for name, value in event.metadata.items()} == {
        "archive_rows": 0,
        "archive_batch": 0,
        "archive_stopped": True,
    }
    done = deliver(declared, Settings(table_root=root), stop=threading.Event(), follows=True)
    assert (done.is_stopped, done.claims, done.rows) == (True, 0, 0)
    assert plan_delivery(declared, root).next_run == "stopped: lockstep delivery start archive"
    assert start_delivery(root, "archive", 0)
    assert not start_delivery(root, "archive", 0)
    assert plan_delivery(declared, root).next_run == "starts with all rows"
    assert run(offline, declared) == 4


def test_an_order_to_stop_ends_a_run_that_follows(offline: Offline, page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_order, "ORDER_SECONDS", 0.1)
    declared = declare(offline, page)
    root = offline.folders.root
    results = list[Any]()
    settings = Settings(table_root=root)

    def follow() -> None:
        results.append(deliver(declared, settings, stop=threading.Event(), follows=True))

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    wait_until(lambda: len(read_values(offline)) == 4, "the rows")
    stop_delivery(root, "archive", 4)
    follower.join(30)
    assert (results[0].is_stopped, results[0].rows) == (True, 4)
    assert [each.event for each in read_history(root, "archive").events] == ["stopped", "claimed"]


def list_droppable(offline: Offline, declared: DeclaredDelivery) -> frozenset[str]:
    limit = find_droppable_hours(declared.stream, offline.folders)
    assert limit is not None
    return limit()


def test_retention_leaves_rows_that_a_delivery_has_not_read_for_as_long_as_it_may_hold_them(
    offline: Offline, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = open_table(offline.folders).base()
    hour = base.head.hour
    later = replace(base, head=replace(base.head, hour="2099-01-01T00"))
    declared = declare(offline, page, holds_rows=timedelta(hours=2))
    assert {file.commit_hour for file in LiveFiles(offline.folders.table).at(base.version)} == {hour}
    assert list_droppable(offline, declared) == frozenset()
    monkeypatch.setattr("lockstep.features.delivery.kept_rows.find_current_hour", lambda: "2099-01-01T00")
    monkeypatch.setattr("lockstep.table.commit.OutputLog.base", lambda _: later)
    assert list_droppable(offline, declared) == {hour}
    longer = declare(offline, page, holds_rows=timedelta(days=100_000))
    assert list_droppable(offline, longer) == frozenset()
    assert list_droppable(offline, declare(offline, page, first_rows=FirstRows.NEW)) == {hour}
    assert find_droppable_hours(declare(offline, page, holds_rows=None).stream, offline.folders) is None


def test_retention_may_drop_the_hours_before_that_of_the_position(offline: Offline, page: Any) -> None:
    declared = declare(offline, page)
    root = offline.folders.root
    run(offline, declared)
    limit = find_droppable_hours(declared.stream, offline.folders)
    done = drop_old_rows(offline.folders, timedelta(hours=1), cause="test", find_exported=limit)
    assert done.retention is None
    position = read_position(root, FollowerName("delivery", "archive"))
    assert position is not None
    write_position(root, replace(position, sources=(replace(position.sources[0], complete_batch=0),)))
    assert list_droppable(offline, declared) == frozenset()


class StopAtRows(threading.Event):
    """A stop that is set when the target of the page has a number of rows: inside a step."""

    def __init__(self, offline: Offline, rows: int) -> None:
        super().__init__()
        self._offline = offline
        self._rows = rows

    def is_set(self) -> bool:
        """Return whether the run must end."""
        return len(read_values(self._offline)) >= self._rows


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_inside_a_step_retention_and_lag_know_the_batches_that_are_delivered_as_a_whole(
    offline: Offline, page: Any, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """The first step has batches 1 to 4 with four rows, the second batches 5 and 6 with two rows."""
    declared = declare(offline, page, holds_rows=timedelta(days=100_000))
    monkeypatch.setattr(page.Folder, "transaction_rows", 1)
    root = offline.folders.root
    if rows > 4:
        run(offline, declared)
        sent = [("new", message(Kind.SNAPSHOT, 1, y=7)), ("new", message(Kind.UPDATE, 2, y=7))]
        offline.run({"kept.one": sent}, {"kept.two": sent})
    deliver(declared, Settings(table_root=root), stop=StopAtRows(offline, rows))
    assert len(read_values(offline)) == rows
    complete = 4 if rows > 4 else 0
    newest = 6 if rows > 4 else 4
    read = read_source_position(root, "archive", "keeping")
    assert read is not None
    assert (read.complete_batch, read.batch) == (complete, newest)
    assert (plan_delivery(declared, root).batch, plan_delivery(declared, root).behind) == (complete, newest - complete)
    base = open_table(offline.folders).base()
    position = read_position(root, FollowerName("delivery", "archive"))
    assert position is not None
    assert compute_lag(position, read, base.head, datetime.now(UTC)).unread_batches == newest - complete
    hours = {complete: base.head.hour, newest: "2098-01-01T00"}
    monkeypatch.setattr(kept_rows, "find_head_of_batch", lambda _, batch: replace(base.head, hour=hours[batch]))
    monkeypatch.setattr(kept_rows, "find_current_hour", lambda: "2099-01-01T00")
    later = replace(base, head=replace(base.head, hour="2099-01-01T00"))
    monkeypatch.setattr("lockstep.table.commit.OutputLog.base", lambda _: later)
    assert list_droppable(offline, declared) == frozenset()
    run(offline, declared)
    assert list_droppable(offline, declared) == {base.head.hour}


@pytest.mark.parametrize("changes", [{"complete_batch": None}, {"batch_generation": 9}])
def test_retention_holds_rows_behind_an_earlier_or_undone_position(
    offline: Offline, page: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """A position of 0.1.0 may be inside a step; batches before an undone position may count again, undelivered."""
    declared = declare(offline, page, holds_rows=timedelta(days=100_000))
    root = offline.folders.root
    run(offline, declared)
    base = open_table(offline.folders).base()
    later = replace(base.head, hour="2098-01-01T00")
    monkeypatch.setattr(kept_rows, "find_head_of_batch", lambda _table, _batch: later)
    monkeypatch.setattr(kept_rows, "find_current_hour", lambda: "2099-01-01T00")
    monkeypatch.setattr("lockstep.table.commit.OutputLog.base", lambda _: replace(base, head=later))
    assert list_droppable(offline, declared) == {base.head.hour}
    position = read_position(root, FollowerName("delivery", "archive"))
    assert position is not None
    write_position(root, replace(position, sources=(replace(position.sources[0], **changes),)))
    assert list_droppable(offline, declared) == frozenset()


def test_the_plan_of_an_erasure_names_the_target_with_its_rows(offline: Offline, page: Any) -> None:
    declared = declare(offline, page)
    head = open_table(offline.folders).base().head
    erased = ErasedHours(offline.folders, declared.stream, head, [head.hour])
    assert find_delivered_rows(erased).notes == ()
    run(offline, declared)
    (note,) = find_delivered_rows(erased).notes
    assert "has rows of batches up to 4, and undone rows if a halt was accepted (delivery archive): erase those" in note


def test_a_kafka_topic_has_an_address_of_its_own() -> None:
    assert KafkaTopic(topic="a").address == "kafka topic a"


def test_the_asset_delivers_and_shows_rows_and_batch(offline: Offline, page: Any) -> None:
    declared = declare(offline, page)
    made = make_delivery_asset(declared.stream, Settings(table_root=offline.folders.root), ["team:a"])
    done = materialize([made])
    (event,) = done.asset_materializations_for_node("keeping__delivery")
    assert {name: value.value for name, value in event.metadata.items()} == {"archive_rows": 4, "archive_batch": 4}


@dataclasses.dataclass(frozen=True)
class AwayTarget(Target):
    """A target that does not answer."""

    way: str

    @property
    def address(self) -> str:
        return f"away ({self.way})"

    def connect(self, delivery: str) -> TargetConnection:
        if self.way == "hangs":
            threading.Event().wait()
        raise TargetInterrupted(delivery, "no answer", retry_seconds=3600.0 if self.way == "asks for a pause" else 0.0)


@pytest.mark.parametrize("order", ["away, archive", "archive, away"])
@pytest.mark.parametrize("way", ["hangs", "does not answer", "asks for a pause"])
def test_a_target_that_is_away_delays_its_delivery_alone_and_the_run_fails(
    offline: Offline, page: Any, monkeypatch: pytest.MonkeyPatch, way: str, order: str
) -> None:
    monkeypatch.setattr(asset, "RUN_SECONDS", 3.0)
    monkeypatch.setattr(asset, "END_SECONDS", 1.0)
    known = {"archive": declare(offline, page).delivery, "away": Delivery(name="away", target=AwayTarget(way))}
    stream = dataclasses.replace(offline.stream, deliveries=tuple(known[name] for name in order.split(", ")))
    made = make_delivery_asset(stream, Settings(table_root=offline.folders.root), ["team:a"])
    with pytest.raises(Failure, match="delivery away was interrupted"):
        materialize([made])
    assert len(read_values(offline)) == 4


def test_the_command_delivers_shows_the_plan_and_the_history(
    offline: Offline, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = declare(offline, page)
    monkeypatch.setattr(commands, "list_all_streams", lambda: {"keeping": declared.stream})
    monkeypatch.setattr(commands, "load_settings_or_exit", lambda: Settings(table_root=offline.folders.root))

    def call(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["deliver", *arguments, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if code == 0 else result.output

    def order(word: str) -> Any:
        return json.loads(CliRunner().invoke(app, ["delivery", word, "archive", "--json"]).stdout)

    assert call("archive", "--plan")[0]["behind"] == 4
    assert call()[0]["rows"] == 4
    assert call("archive")[0]["rows"] == 0
    assert [each["event"] for each in call("archive", "--history")[0]["events"]] == ["claimed"]
    assert order("stop")[0]["next_run"] == "stopped: lockstep delivery start archive"
    assert call("archive")[0]["is_stopped"]
    assert order("start")[0]["next_run"] == "delivers 0 batches"
    assert not call("archive")[0]["is_stopped"]
    call("--follow", code=2)
    call("--accept", code=2)
