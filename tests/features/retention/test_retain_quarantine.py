"""Retention of quarantine and late table: the head records the drop first, and commits in between lose nothing."""

from __future__ import annotations

import json
import os
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.declare.stream import RETENTION_MAX
from lockstep.errors import DeclarationError
from lockstep.features.compaction.side_files import compact_side_tables, list_replaced_side_files
from lockstep.features.history.shadow import name_shadow
from lockstep.features.retention import messages as retain_quarantine
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.features.retention.messages import (
    drop_old_messages,
    find_last_dropped_batch,
    find_last_old_batch,
    plan_quarantine_retention,
)
from lockstep.features.retention.side_files import drop_side_files
from lockstep.operations.inspect.health import _read_quarantine
from lockstep.operations.inspect.history import read_history
from lockstep.operations.quarantine import NotInQuarantine, Place, list_quarantine, read_quarantined
from lockstep.operations.quarantine import QuarantineFilter as Filter
from lockstep.operations.query import AsOf, query_sql
from lockstep.table import delta_log
from lockstep.table.create import create_late_table
from lockstep.table.ledger import LedgerFileName
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from lockstep.table.side_files import REPLACED_SECONDS, LedgerFile, SideTableFile
from tests.features.export.declared import make_stream
from tests.support.plain_reader import named_files, read_table
from tests.support.protocol_run import TOPIC, TOPIC_ID, ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.head import Head, SideFile
    from lockstep.table.layout import StreamFolders

HOURS = 6
KEEP = timedelta(hours=2)


def make_message(run: ProtocolRun, number: int, *, value: bytes = b"v", key: str = "s") -> QuarantineRow:
    return QuarantineRow(
        generation=run.head.generation,
        batch=run.head.batch + 1,
        topic_id=TOPIC_ID,
        topic=TOPIC,
        partition=0,
        offset=10 * run.head.batch + number,
        session=key,
        cause="gap",
        expected=None,
        found=None,
        timestamp=None,
        key=key.encode(),
        value=value,
        value_bytes=len(value),
        headers=[],
    )


def write_messages(run: ProtocolRun, folder: Path, messages: int = 2) -> SideFile:
    rows = [make_message(run, number) for number in range(messages)]
    return write_quarantine(folder, rows, label=f"g{run.head.generation}-e{run.head.epoch}-b{run.head.batch + 1}")


def add_batch(run: ProtocolRun) -> None:
    """Commit a batch with two quarantined messages and a late message."""
    batch = msgspec.structs.replace(
        run.prepared(full=True),
        quarantine=(write_messages(run, run.folders.quarantine),),
        late=(write_messages(run, run.folders.late, 1),),
    )
    run.forward(run.commit(batch).head)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    """Six hours of two batches, each with two quarantined messages and a late message."""
    run = ProtocolRun(folders_in(tmp_path_factory.mktemp("hours")))
    create_late_table(run.folders)
    run.claim()
    for _ in range(HOURS):
        add_batch(run)
        add_batch(run)
        run.clock += timedelta(hours=1)
    return run


@pytest.fixture
def run(written: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    return written.copied(tmp_path / "copy")


def find_batches(folder: Path) -> list[int]:
    rows = read_table(folder).select(["batch"]).to_pylist() if named_files(folder) else []
    return sorted(row["batch"] for row in rows)


def test_the_messages_of_old_hours_go_and_the_writer_goes_on(run: ProtocolRun) -> None:
    plan = plan_quarantine_retention(run.folders, KEEP)
    shown = [(each.table, each.messages, each.first_batch, each.last_batch) for each in plan.tables]
    assert (plan.before_hour, plan.batch, plan.files) == ("2026-01-01T03", 6, 12)
    assert shown == [("quarantine", 12, 1, 6), ("late", 6, 1, 6)]
    assert plan.bytes == sum(
        (each / path).stat().st_size
        for each in (run.folders.quarantine, run.folders.late)
        for path in named_files(each)[:6]
    )
    assert find_batches(run.folders.late) == list(range(1, 13))
    done = drop_old_messages(run.folders, KEEP, cause="GDPR, by me")
    assert done.plan == plan
    assert done.retention is not None
    assert (done.retention.batch, done.retention.quarantined, done.retention.late) == (6, 12, 6)
    add_batch(run)
    assert run.head.quarantine_retention == done.retention
    assert find_batches(run.folders.late) == list(range(7, 14))
    assert find_batches(run.folders.quarantine) == sorted([*range(7, 14)] * 2)


def test_what_is_dropped_is_dropped_once_and_counted_over_all_retentions(run: ProtocolRun) -> None:
    drop_old_messages(run.folders, KEEP, cause="first")
    version = run.output.base().version
    again = drop_old_messages(run.folders, KEEP, cause="again")
    assert (again.plan.files, again.retention and again.retention.cause) == (0, "first")
    assert run.output.base().version == version
    further = drop_old_messages(run.folders, timedelta(hours=1), cause="further").retention
    assert further is not None
    assert (further.batch, further.quarantined, further.late) == (8, 16, 8)


class Killed(Exception):  # not an error
    """Simulates a kill."""


@pytest.mark.parametrize("survived", [0, 1])
def test_a_killed_retention_is_completed_by_the_next_one(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    drop = drop_side_files
    left = [survived]

    def die(side: Path, last_batch: int) -> tuple[SideTableFile, ...]:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return drop(side, last_batch)

    with monkeypatch.context() as patched:
        patched.setattr(retain_quarantine, "drop_side_files", die)
        with pytest.raises(Killed):
            drop_old_messages(run.folders, KEEP, cause="killed")
    assert run.output.base().head.quarantine_dropped_up_to == 6
    assert 1 in find_batches(run.folders.late)
    done = drop_old_messages(run.folders, timedelta(hours=100), cause="next")
    assert (done.plan.files, done.retention and done.retention.cause) == (12 - 6 * survived, "killed")
    assert find_batches(run.folders.late) == list(range(7, 13))


def test_the_head_names_what_goes_before_any_file_does(run: ProtocolRun, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def look(side: Path, last_batch: int) -> tuple[SideTableFile, ...]:
        del side
        seen.append(run.output.base().head.quarantine_dropped_up_to)
        assert seen[-1] == last_batch
        return ()

    monkeypatch.setattr(retain_quarantine, "drop_side_files", look)
    drop_old_messages(run.folders, KEEP, cause="test")
    assert seen == [6, 6]


def test_a_retention_or_rewind_before_the_commit_makes_a_new_plan(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = retain_quarantine._plan  # noqa: SLF001  # between plan and commit
    calls = list[int]()

    def overtaken(folders: StreamFolders, head: Head, keep: timedelta) -> object:
        found = plan(folders, head, keep)
        calls.append(found.batch)
        if len(calls) == 1:
            with monkeypatch.context() as patched:
                patched.setattr(retain_quarantine, "_plan", plan)
                drop_old_messages(run.folders, timedelta(hours=3), cause="other")
        if len(calls) == 2:
            run.head = run.output.base().head
            run.rewind(11)
        return found

    monkeypatch.setattr(retain_quarantine, "_plan", overtaken)
    done = drop_old_messages(run.folders, KEEP, cause="test")
    assert calls == [6, 6, 8]  # the rewind started another hour
    assert done.retention is not None
    assert (done.retention.batch, done.retention.quarantined, done.retention.late) == (8, 16, 8)


def test_a_compaction_between_plan_and_removal_loses_nothing(run: ProtocolRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """It merges dropped messages with others into a file, which stays until the others are also dropped."""
    drop = drop_side_files
    later = msgspec.structs.replace(run.head, hour="2099-01-01T00")
    with monkeypatch.context() as patched:

        def compact_first(side: Path, last_batch: int) -> tuple[SideTableFile, ...]:
            compact_side_tables(run.folders, later)
            return drop(side, last_batch)

        patched.setattr(retain_quarantine, "drop_side_files", compact_first)
        drop_old_messages(run.folders, KEEP, cause="test")
    assert find_batches(run.folders.late) == list(range(1, 13))
    add_batch(run)
    run.clock += timedelta(hours=3)
    add_batch(run)
    drop_old_messages(run.folders, KEEP, cause="test")
    assert find_batches(run.folders.late) == [14]


def test_a_rewind_does_not_bring_messages_back_and_keeps_the_word_of_the_head(run: ProtocolRun) -> None:
    dropped = drop_old_messages(run.folders, KEEP, cause="test").retention
    run.head = run.output.base().head
    run.rewind(3)
    assert run.head.quarantine_retention == dropped
    run.claim()
    add_batch(run)
    assert find_batches(run.folders.late)[-1] == 14


def test_messages_are_dropped_again_in_the_head_whose_entry_a_disk_lost(run: ProtocolRun) -> None:
    drop_old_messages(run.folders, KEEP, cause="test")
    delta_log.make_entry_path(run.folders.table, run.output.base().version).unlink()
    lost = ProtocolRun(run.folders)
    assert lost.head.quarantine_retention is None
    done = drop_old_messages(run.folders, timedelta(hours=100), cause="again").retention
    assert done is not None
    assert done.batch == 6


def test_files_are_deleted_two_hours_later_and_not_before(run: ProtocolRun, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = named_files(run.folders.quarantine)[:6]
    done = drop_old_messages(run.folders, KEEP, cause="test").retention
    assert done is not None
    long_ago = time.time() - 100 * 3600
    for path in run.folders.quarantine.glob("*.parquet"):
        os.utime(path, (long_ago,) * 2)
    head = run.output.base().head
    assert list_replaced_side_files(run.folders.quarantine, head) == []
    monkeypatch.setattr(time, "time", lambda: done.at + REPLACED_SECONDS + 1)
    found = list_replaced_side_files(run.folders.quarantine, head)
    assert [path.name for path in found] == sorted(dropped)


def test_counts_stay_right(run: ProtocolRun) -> None:
    before = _read_quarantine(run.folders, run.head, time.time())
    done = drop_old_messages(run.folders, KEEP, cause="test").retention
    after = _read_quarantine(run.folders, run.output.base().head, time.time())
    assert done is not None
    assert (before[0], after[0] + done.quarantined) == (24, 24)


def test_whoever_asks_for_messages_is_told_what_was_dropped(run: ProtocolRun) -> None:
    drop_old_messages(run.folders, KEEP, cause="GDPR, by me")
    text = "quarantined and late messages of batches up to 6 (GDPR, by me)"
    newest = read_history(run.folders, 1).events[-1]
    assert (newest.event, newest.detail) == ("messages dropped", text)
    found = query_sql("SELECT count(*) FROM readings_late", ["readings"], run.folders.root, AsOf(), limit=None)
    assert (found.rows, found.notes) == ([[6]], (f"readings: {text} were dropped",))
    listed = list_quarantine(run.folders, Filter())
    assert (listed.messages_total, listed.dropped) == (12, text)
    with pytest.raises(NotInQuarantine, match=r"t/0@10 is not in quarantine; retention has dropped the quarantined"):
        read_quarantined(run.folders, Place(TOPIC, 0, 10))


def test_housekeeping_drops_messages_by_declaration(run: ProtocolRun) -> None:
    def keep(*, plan_only: bool = False) -> dict[str, int]:
        declared = make_stream(quarantine_retention=KEEP)
        done = run_housekeeping(run.folders, retention_seconds=3600, stream=declared, plan_only=plan_only)
        return {step.step: step.files for step in done.steps}

    assert keep(plan_only=True)["messages past retention"] == 12
    assert 1 in find_batches(run.folders.late)
    done = keep()
    assert (done["messages past retention"], "rows past retention" in done) == (12, False)
    assert find_batches(run.folders.late) == list(range(7, 13))


def test_a_wrong_retention_is_refused_and_a_shadow_has_none() -> None:
    for wrong in (timedelta(minutes=59), RETENTION_MAX + timedelta(hours=1), 30):
        with pytest.raises(DeclarationError, match=r"Stream\.quarantine_retention"):
            make_stream(quarantine_retention=wrong)
    assert name_shadow(make_stream(quarantine_retention=KEEP), "shadow").quarantine_retention is None


def test_a_stream_without_batches_has_nothing_to_drop(tmp_path: Path) -> None:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    done = drop_old_messages(run.folders, KEEP, cause="test")
    assert (done.plan.before_hour, done.plan.batch, done.retention) == ("", 0, None)


def test_a_compacted_message_takes_less_than_a_hundred_bytes_and_a_dropped_one_none(tmp_path: Path) -> None:
    """The figures of docs/sizing.md, for JSON of 206 B with random numbers."""
    run = ProtocolRun(folders_in(tmp_path))
    chance = random.Random(0)  # noqa: S311  # repeatable
    run.claim()

    def make_value() -> bytes:
        changes = [{"id": chance.randrange(10**6), "price": chance.random(), "size": chance.random()} for _ in "ab"]
        return json.dumps({"type": "update", "sequence": chance.randrange(10**9), "changes": changes}).encode()

    for _ in range(60):
        rows = [
            make_message(run, number, value=make_value(), key=f"sensor-{chance.randrange(200)}") for number in range(10)
        ]
        file = write_quarantine(run.folders.quarantine, rows, label=f"g1-e1-b{run.head.batch + 1}")
        run.forward(run.commit(msgspec.structs.replace(run.prepared(full=True), quarantine=(file,))).head)
    small = measure(run.folders.quarantine)
    run.clock += timedelta(hours=3)
    run.batch(full=True)
    compact_side_tables(run.folders, msgspec.structs.replace(run.head, hour="2099-01-01T00"))
    assert small / 600 == pytest.approx(520, rel=0.2)
    assert measure(run.folders.quarantine) / 600 == pytest.approx(80, rel=0.2)
    drop_old_messages(run.folders, KEEP, cause="test")
    assert measure(run.folders.quarantine) == 0


def measure(folder: Path) -> int:
    """Return the bytes of the live files."""
    return sum((folder / path).stat().st_size for path in named_files(folder))


RANGES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), max_size=6)
"""First batch of each file and the count of further batches; after a clock went back, compacted hours interleave."""


@example(ranges=[(1, 2), (2, 0)], last_old=2)
@given(ranges=RANGES, last_old=st.integers(0, 15))
def test_no_kept_file_has_a_message_of_a_dropped_batch_and_no_more_stay_than_must(
    ranges: list[tuple[int, int]], last_old: int
) -> None:
    names = [LedgerFileName("2026-01-01T00", 1, first, first + more) for first, more in ranges]
    files = [SideTableFile("f", 1, 1, name, 0) for name in names]

    def may_go(batch: int) -> bool:
        return not any(name.first <= batch < name.last for name in names)

    allowed = [name.last for name in names if name.last <= last_old and may_go(name.last)]
    assert find_last_dropped_batch(files, last_old) == max(allowed, default=0)


@given(hours=st.lists(st.integers(0, 23), max_size=10), before=st.integers(0, 23))
def test_only_batches_before_the_first_one_of_a_kept_hour_are_old(hours: list[int], before: int) -> None:
    """A batch does not become older than earlier batches because a clock went back."""
    files = [
        LedgerFile(f"f{number}", 1, 1, LedgerFileName(f"2026-01-01T{hour:02}", 1, number, number))
        for number, hour in enumerate(hours, start=1)
    ]
    kept = [number for number, hour in enumerate(hours, start=1) if hour >= before]
    expected = min(kept, default=len(hours) + 1) - 1
    assert find_last_old_batch(reversed(files), f"2026-01-01T{before:02}") == expected
