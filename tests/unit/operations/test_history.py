"""The timeline of a stream, from the log of its table alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep.model.finding import Finding
from lockstep.operations.inspect.history import read_history
from lockstep.operations.stream_table import NoTable
from lockstep.table.commit import commit_claim, commit_closed_hour, set_desired_state
from lockstep.table.delta_log import make_entry_path
from lockstep.table.head import Desired
from tests.support.protocol_run import HOUR, ProtocolRun, anything, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.operations.inspect.history import History
    from lockstep.table.layout import StreamFolders

FINDING = Finding(cause="gap", topic="t", topic_id="id", partition=0, offset=7, until=8)


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    return folders_in(tmp_path)


def claimed(folders: StreamFolders, cause: str) -> ProtocolRun:
    run = ProtocolRun(folders)
    claim = commit_claim(run.head.epoch, run.output.table_id, anything, cause=cause)
    run.head = run.output.commit(claim).head
    run.forward(run.head)
    return run


def shown(history: History) -> list[tuple[str, int, int | None, str]]:
    return [(each.event, each.count, each.batch, each.detail) for each in history.events]


def test_runs_halts_and_what_people_did_stand_in_order_and_batches_between_them_are_one_event(
    folders: StreamFolders,
) -> None:
    run = claimed(folders, "first start; started by hand")
    for _ in range(3):
        run.batch()
    run = claimed(folders, "handover; new topics: t2")
    run.batch()
    run.output.commit(commit_closed_hour(HOUR))
    run.output.commit(set_desired_state(run.writer, Desired.STOPPED, "maintenance, by ann"))
    history = read_history(folders, last=50)
    assert shown(history) == [
        ("created", 1, 0, ""),
        ("new writer", 1, 0, "first start; started by hand"),
        ("batches", 3, 3, ""),
        ("new writer", 1, 3, "handover; new topics: t2"),
        ("batches", 1, 4, ""),
        ("hour closed", 1, 4, HOUR),
        ("desired state", 1, 4, "stopped: maintenance, by ann"),
    ]
    assert [each.epoch for each in history.events] == [0, 1, 1, 2, 2, 2, 2]
    assert history.events[2].version == 4  # of the last batch
    assert all(each.at is not None for each in history.events)
    assert (history.is_complete, history.first_version) == (True, 0)


def test_a_start_is_one_new_writer_though_its_command_claims_the_table_before_the_run(folders: StreamFolders) -> None:
    run = claimed(folders, "first start; test")
    why = "lockstep start (ann)"
    asked = commit_claim(run.head.epoch, run.output.table_id, anything, desired=Desired.RUNNING, reason=why)
    run.output.commit(asked)
    claimed(folders, f"the run before had ended; {why}")
    assert shown(read_history(folders, last=2)) == [
        ("desired state", 1, 0, f"running: {why}"),
        ("new writer", 1, 0, f"the run before had ended; {why}"),
    ]


def test_a_halt_names_its_findings(folders: StreamFolders) -> None:
    run = claimed(folders, "first start; test")
    run.commit(run.prepared(rows=0, findings=(FINDING,)))
    (halt,) = read_history(folders, last=1).events
    assert (halt.event, halt.detail) == ("halted", str(FINDING))


def test_older_events_are_left_out_and_that_is_said(folders: StreamFolders) -> None:
    for number in range(5):
        claimed(folders, f"run {number}")
    history = read_history(folders, last=2)
    assert [each.detail for each in history.events] == ["run 3", "run 4"]
    assert not history.is_complete


def test_a_commit_of_another_tool_is_named(folders: StreamFolders) -> None:
    claimed(folders, "first start; test")
    DeltaTable(folders.table).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    foreign = read_history(folders, last=50).events[-1]
    assert (foreign.event, foreign.epoch, foreign.batch) == ("foreign commit", None, None)
    assert foreign.detail.startswith("SET TBLPROPERTIES by delta-rs")


def test_it_begins_where_housekeeping_left_the_log(folders: StreamFolders) -> None:
    run = claimed(folders, "first start; test")
    for _ in range(3):
        run.batch()
    for version in (0, 1, 2):
        make_entry_path(folders.table, version).unlink()
    history = read_history(folders, last=50)
    assert shown(history) == [("batches", 2, 3, "")]
    assert (history.is_complete, history.first_version) == (True, 3)


def test_a_stream_without_a_table_has_none(folders: StreamFolders) -> None:
    with pytest.raises(NoTable):
        read_history(folders, last=1)
