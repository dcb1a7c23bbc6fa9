"""The plan that was shown is carried out, or refused by name, if other writers change the table in between.

Every command of the frame meets every change, alone and in sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.errors import LockstepError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.compaction.side_files import compact_side_tables
from lockstep.features.copies.backup import make_backup, prepare_restore
from lockstep.features.erase import erase
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session, prepare_erasure
from lockstep.features.history import rewind
from lockstep.features.history.rewind import prepare_rewind
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.retention.messages import drop_old_messages, prepare_quarantine_retention
from lockstep.features.retention.rows import drop_old_rows, prepare_retention
from lockstep.model.position import TopicIdPartition
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.plan_frame import CHANGED, Refused
from lockstep.operations.repair import prepare_repair
from lockstep.table import delta_log, ledger
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from tests.support.cluster_views import topic, view
from tests.support.examples import scale_examples
from tests.support.plain_reader import named_files, read_table
from tests.support.protocol_run import TOPIC, TOPIC_ID, ProtocolRun, folders_in, stored_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.operations.plan_frame import Plan, Prepared
    from lockstep.operations.stream_handle import StreamHandle
    from lockstep.table.layout import StreamFolders

HOURS = 4
KEEP = timedelta(hours=1)
REQUEST = EraseRequest(session="s", drop_savepoints=True)


def write_batch(run: ProtocolRun) -> None:
    """Commit a batch with two rows, and a message in quarantine."""
    row = QuarantineRow(
        generation=run.head.generation, batch=run.head.batch + 1, topic_id=TOPIC_ID, topic=TOPIC, partition=0,
        offset=10 * run.head.batch, session="s", cause="gap", expected=None, found=None, timestamp=None, key=b"s",
        value=b"v", value_bytes=1, headers=[],
    )  # fmt: skip
    label = f"g{run.head.generation}-e{run.head.epoch}-b{run.head.batch + 1}"
    batch = run.prepared(full=True)
    batch = msgspec.structs.replace(batch, quarantine=(write_quarantine(run.folders.quarantine, [row], label=label),))
    run.forward(run.commit(batch).head)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """Return a run with four hours of two batches."""
    run = ProtocolRun(folders_in(tmp_path_factory.mktemp("hours")))
    run.claim()
    for _ in range(HOURS):
        write_batch(run)
        write_batch(run)
        run.clock += timedelta(hours=1)
    return run


@pytest.fixture(autouse=True)
def no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (erase, rewind):
        monkeypatch.setattr(module, "is_writer_alive", lambda *_: False)
    monkeypatch.setattr(rewind, "publish_positions", lambda *_: True)


def make_handle(run: ProtocolRun) -> StreamHandle:
    """Return a handle that has read the table as it is now; Kafka has all messages."""
    head = run.output.base().head
    rows = ledger.read_positions(run.folders, head)
    ends = {key: (0, row.until, row.until) for key, row in rows.items()}
    seen = view(topic(TOPIC, TOPIC_ID), ends=ends or {TopicIdPartition(TOPIC_ID, 0): (0, 0, 0)})
    known: Any = SimpleNamespace(
        folders=run.folders,
        stream=SimpleNamespace(name=run.folders.stream, export=None),
        require_head=lambda: head,
        positions=rows,
        view=seen,
        readable=seen,  # without an archive
    )
    return known  # type: ignore[no-any-return]  # the part of a handle that a rewind reads


def count_messages(folders: StreamFolders, command: str) -> int:
    """Count messages in quarantine; for an erasure only of its session, as an erasure leaves rows without a session."""
    sessions = read_table(folders.quarantine)["session"].to_pylist() if named_files(folders.quarantine) else []
    return sessions.count("s") if command == "erase" else len(sessions)


COMMANDS: Mapping[str, Callable[[ProtocolRun], Prepared[Any, Any]]] = {
    "erase": lambda run: prepare_erasure(run.folders, REQUEST, EraseContext(), cause="shown"),
    "expire": lambda run: prepare_retention(run.folders, KEEP, cause="shown"),
    "expire --quarantine": lambda run: prepare_quarantine_retention(run.folders, KEEP, cause="shown"),
    "rewind": lambda run: prepare_rewind(make_handle(run), "3", cause="shown"),
}


def take_batch(run: ProtocolRun) -> None:
    """Commit a batch as a writer that has claimed the table."""
    run.head = run.output.base().head
    run.claim()
    write_batch(run)


CHANGES: Mapping[str, Callable[[ProtocolRun], object]] = {
    "batch": take_batch,
    "compaction": lambda run: compact_stream(run.folders),
    "compaction of the quarantine": lambda run: compact_side_tables(run.folders, run.output.base().head),
    "hour": lambda run: close_hour(run.folders),
    "rows": lambda run: drop_old_rows(run.folders, timedelta(hours=2), cause="another"),
    "messages": lambda run: drop_old_messages(run.folders, timedelta(hours=2), cause="another"),
    "savepoint": lambda run: make_savepoint(run.folders, f"at{run.output.base().version}", who="bob", why="another"),
    "erasure": lambda run: erase_session(run.folders, EraseRequest(session="x"), EraseContext(), who="b", why="a"),
    "erasure of the session": lambda run: erase_session(run.folders, REQUEST, EraseContext(), who="b", why="a"),
    "rewind": lambda run: prepare_rewind(make_handle(run), "6", cause="another").commit(),
}
HARMLESS = {"compaction", "compaction of the quarantine", "hour"}
"""Changes after which every shown plan can still be carried out."""


def count_promised(plan: Plan) -> tuple[int, int]:
    """Return the numbers of rows and messages that a plan removes."""
    return getattr(plan, "rows", 0), getattr(plan, "messages", 0)


def check_promise(run: ProtocolRun, command: str, changes: list[str]) -> bool:
    """Show a plan, change the table and commit the plan; return whether it was carried out as shown."""
    prepared = COMMANDS[command](run)
    for change in changes:
        with suppress(LockstepError):  # such as an erasure of a session that is gone
            CHANGES[change](run)
    before = (stored_offsets(run.folders), count_messages(run.folders, command))
    is_refused = False
    try:
        prepared.commit()
    except LockstepError:
        is_refused = True
    after = (stored_offsets(run.folders), count_messages(run.folders, command))
    if is_refused:
        assert after == before
        return False
    assert set(after[0]) <= set(before[0])
    assert (len(before[0]) - len(after[0]), before[1] - after[1]) == count_promised(prepared.plan)
    return True


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_change_between_question_and_answer(written: ProtocolRun, tmp_path: Path, command: str, change: str) -> None:
    done = check_promise(written.copied(tmp_path / "copy"), command, [change])
    assert done or change not in HARMLESS


@settings(
    max_examples=scale_examples(40, usual=6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(command=st.sampled_from(sorted(COMMANDS)), changes=st.lists(st.sampled_from(sorted(CHANGES)), max_size=3))
def test_changes_between_question_and_answer(
    written: ProtocolRun, tmp_path_factory: pytest.TempPathFactory, command: str, changes: list[str]
) -> None:
    run = written.copied(tmp_path_factory.mktemp("run") / "copy")
    done = check_promise(run, command, changes)
    assert done or not set(changes) <= HARMLESS


def test_a_retention_that_dropped_rows_meanwhile_is_named(written: ProtocolRun, tmp_path: Path) -> None:
    run = written.copied(tmp_path / "copy")
    prepared = COMMANDS["expire"](run)
    CHANGES["rows"](run)
    with pytest.raises(Refused, match="the plan has changed since it was shown: rows was 8, is 4") as refused:
        prepared.commit()
    assert [each.kind for each in refused.value.obstacles] == [CHANGED]


def test_a_restore_is_of_the_backup_that_was_shown(written: ProtocolRun, tmp_path: Path) -> None:
    run = written.copied(tmp_path / "copy")
    target = tmp_path / "backup"
    make_backup(run.folders, target)
    prepared = prepare_restore(folders_in(tmp_path / "other", run.folders.stream), target)
    take_batch(run)
    make_backup(run.folders, target)
    done = prepared.commit()
    restored = ProtocolRun(folders_in(tmp_path / "other", run.folders.stream))
    assert done.batch == prepared.plan.batch == restored.head.batch == run.head.batch - 1


def test_a_restore_beside_another_restore_is_refused(written: ProtocolRun, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    folders = folders_in(tmp_path / "other", written.folders.stream)
    make_backup(written.folders, target)
    prepared = prepare_restore(folders, target)
    prepare_restore(folders, target).commit()
    with pytest.raises(Refused, match="something already"):
        prepared.commit()
    with pytest.raises(Refused, match="something already"):
        prepare_restore(folders, target).commit()


def test_a_repair_leaves_a_fault_that_was_not_shown(written: ProtocolRun, tmp_path: Path) -> None:
    run = written.copied(tmp_path / "copy")
    run.commit(run.prepared())  # the ledger is behind
    prepared = prepare_repair(run.folders)
    assert prepared.plan.is_due
    torn = delta_log.make_entry_path(run.folders.ledger, max(delta_log.list_versions(run.folders.ledger)) + 1)
    torn.write_text("{")
    found = prepared.commit()
    assert torn.exists()
    assert [check.condition for check in found.checks if check.condition != "ok"] == ["repairable"]
    everything = partial(prepare_repair, run.folders, everything=True)
    assert everything().commit().whole
    assert torn.read_text() != "{"
