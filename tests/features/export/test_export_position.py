"""The position of an export on a real broker: lag, alarm and proof, also after a kill before its write."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from lockstep.derived import Export
from lockstep.features.compaction.run import compact_stream
from lockstep.features.export import export as operation
from lockstep.features.export.dataset import ExportMismatch, list_exported_hours
from lockstep.features.export.export import export_stream
from lockstep.operations.followers import LOST
from lockstep.operations.lifecycle import close_hour
from lockstep.table.commit import OutputLog, raise_rewind_floor
from lockstep.table.follower_positions import FollowerName, make_position_path
from lockstep.verify.report import InvariantStatus
from tests.support.feed import session, update
from tests.support.follower_looks import (
    Killed,
    age_last_run,
    die,
    list_alarms,
    prove_follower,
    read_status_of,
    require_position,
)

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

NAME = FollowerName("export", "adding")


def make_ready(runs: LocalRuns, feed: Feed, topic: str, number: int) -> None:
    """Write two batches, each in an hour that is then closed; compact, and raise the rewind floor to the second."""
    for values in ((number,), (number + 1,)):
        feed.send(topic, [update(each, a=1) for each in values])
        runs.run()
        close_hour(runs.folders)
    compact_stream(runs.folders)
    head = runs.handle.require_head()
    OutputLog(runs.folders.table).commit(raise_rewind_floor(head.generation, head.batch))


@pytest.fixture
def exported(feed: Feed, runs: LocalRuns) -> LocalRuns:
    """A stream with two exported hours."""
    runs = runs.of(dataclasses.replace(runs.stream, export=Export()))
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.run()
    close_hour(runs.folders)
    make_ready(runs, feed, topic, 4)
    assert read_status_of(runs).next_run == "writes 2 hours"
    assert len(export_stream(runs.stream, runs.folders).hours) == 2
    return runs


def make_late(runs: LocalRuns, feed: Feed) -> str:
    """Make two more hours ready, age the last export beyond its objective and return the alarm."""
    make_ready(runs, feed, f"{feed.family}.values", 6)
    age_last_run(runs, NAME)
    (late,) = list_alarms(runs)
    return late


def test_an_export_waits_for_a_table_and_for_hours(feed: Feed, runs: LocalRuns) -> None:
    runs = runs.of(dataclasses.replace(runs.stream, export=Export()))
    assert read_status_of(runs).next_run == "waits for a table"
    feed.send(feed.create("values"), session(2))
    runs.run()
    assert (read_status_of(runs).behind, read_status_of(runs).last_run) == (0, None)
    assert list_alarms(runs) == []


def test_an_export_has_lag_alarm_and_proof(exported: LocalRuns, feed: Feed) -> None:
    status = read_status_of(exported)
    assert (status.kind, status.behind, status.problem) == ("export", 0, "")
    assert status.freshness_seconds is not None
    assert list_alarms(exported) == []
    assert prove_follower(exported).status is InvariantStatus.PROVEN
    late = make_late(exported, feed)
    assert "export adding: 2 unread batches, and no run for 4.0 h; the objective is 3.0 h" in late
    assert "next: lockstep export adding; if its declaration was removed: lockstep forget export adding" in late
    assert read_status_of(exported).behind == 2
    assert prove_follower(exported).status is InvariantStatus.PROVEN


def test_a_kill_before_the_position_is_made_up_by_the_next_run(
    exported: LocalRuns, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = make_late(exported, feed)
    before = require_position(exported, NAME)
    with monkeypatch.context() as killed:
        killed.setattr(operation, "write_position", die)
        with pytest.raises(Killed):
            export_stream(exported.stream, exported.folders)
    assert len(list_exported_hours(exported.folders.export)) == 4
    assert require_position(exported, NAME) == before
    assert list_alarms(exported) == [late]
    assert export_stream(exported.stream, exported.folders).hours == ()
    assert list_alarms(exported) == []
    assert require_position(exported, NAME).sources[0].batch == exported.handle.require_head().rewind_floor - 1


def test_a_failed_export_and_a_damaged_position_are_alarms(exported: LocalRuns) -> None:
    other = dataclasses.replace(exported.stream, export=Export(columns=("value",)))
    with pytest.raises(ExportMismatch):
        export_stream(other, exported.folders)
    (failed,) = list_alarms(exported)
    assert "failed with ExportMismatch" in failed
    make_position_path(exported.folders.root, NAME).write_bytes(b"{")
    (damaged,) = list_alarms(exported)
    assert "the position of export adding cannot be read" in damaged
    assert prove_follower(exported).status is InvariantStatus.NOT_PROVEN
    make_position_path(exported.folders.root, NAME).unlink()
    assert read_status_of(exported).problem == LOST
    export_stream(exported.stream, exported.folders)
    assert list_alarms(exported) == []
    assert read_status_of(exported).problem == ""


def test_a_position_that_the_table_contradicts_is_a_violation(feed: Feed, runs: LocalRuns) -> None:
    runs = runs.of(dataclasses.replace(runs.stream, export=Export()))
    feed.send(feed.create("values"), session(2))
    runs.run()
    export_stream(runs.stream, runs.folders)
    path = make_position_path(runs.folders.root, NAME)
    version = OutputLog(runs.folders.table).base().version
    path.write_text(path.read_text().replace(f'"version":{version},', f'"version":{version + 1},'))
    proof = prove_follower(runs)
    assert proof.status is InvariantStatus.VIOLATED
    assert proof.reason == f"it claims version {version + 1}, and the table has {version}"
    assert proof.next_step == "lockstep export adding"
