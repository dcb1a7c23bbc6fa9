"""Proofs during a run, after compaction, of re-created topics, and of classes that cannot be proven."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockstep import EventTime, Every, FuzzyWindow, NoIntegrity, Once, Ordered, Strict
from lockstep.engine.driver.startup import WriterStartup
from lockstep.errors import LockstepError
from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.features.compaction.run import compact_stream
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.features.retention import rows as retain
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.integrity.resume_options import IntegrityLost, SkipSession
from lockstep.integrity.strict import Checksum
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.resume import resume_stream
from lockstep.operations.stream_table import open_table
from lockstep.table import ledger
from lockstep.table.commit import raise_rewind_floor
from lockstep.table.layout import StreamFolders
from lockstep.table.side_files import REPLACED_SECONDS
from lockstep.verify import verify as proving
from lockstep.verify.ledger import LedgerChain, LedgerRange, StoredRanges, make_chains
from lockstep.verify.report import InvariantStatus, VerifyReport, ViolationKind
from lockstep.verify.row_spool import BY_BATCH, RowSpool
from lockstep.verify.verify import verify_stream
from tests.correctness.verify.forging import Forged
from tests.correctness.verify.producing import encoded
from tests.correctness.verify.streams import bookings
from tests.support.adding_stream import BY_SUSPENSION, adding
from tests.support.evolving_streams import First, InRows, Wider, WiderReading, release
from tests.support.feed import Feed, session, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from lockstep import Record
    from lockstep.engine.driver.startup import WriterClaim
    from tests.support.adding_stream import Reading, Snapshot, Update
    from tests.support.evolving_streams import TableState


PROOFS_BESIDE = 5
ADVANCED_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class Unread(Checksum):
    """Evidence of a later release, whose second gate is missing."""


def proof(runs: LocalRuns, folders: StreamFolders | None = None) -> VerifyReport:
    return verify_stream(runs.stream, folders or runs.folders, runs.settings.kafka)


def test_a_proof_beside_a_writer_ends_at_the_head_that_it_found(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    stop = threading.Event()
    feed.send(topic, session(20))
    runs.run()
    writer = threading.Thread(target=runs.run, kwargs={"trigger": Every(seconds=0.1), "stop": stop})
    writer.start()
    try:
        found = []
        for number in range(PROOFS_BESIDE):
            feed.send(topic, [update(22 + 10 * number + n, a=1) for n in range(10)])
            found.append(proof(runs))
    finally:
        stop.set()
        writer.join()
    assert [(each.status, each.violations) for each in found] == [(InvariantStatus.PROVEN, ())] * PROOFS_BESIDE
    assert [each.batch for each in found] == sorted(each.batch for each in found)


@pytest.fixture
def three_hours(feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch) -> LocalRuns:
    """Batches of three hours, by the clock of the driver."""
    topic = feed.create("values")
    began = ledger.read_clock()
    for number in range(6):
        monkeypatch.setattr(ledger, "read_clock", lambda hours=number // 2: began + timedelta(hours=hours))
        feed.send(topic, session(3) if number == 0 else [update(4 + number, a=1)])
        runs.run()
    return runs


@pytest.fixture
def later_hours(feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch) -> LocalRuns:
    """A batch in each of four hours."""
    topic = feed.create("values")
    for number in range(4):
        feed.send(topic, session(3) if number == 0 else [update(4 + number, a=1)])
        runs.run()
        close_hour(runs.folders)
    newest = open_table(runs.folders).base().head.hour
    monkeypatch.setattr(retain, "find_current_hour", lambda: newest)
    return runs


def test_rows_that_retention_dropped_are_not_expected_and_all_others_are(
    later_hours: LocalRuns, tmp_path: Path
) -> None:
    rows = len(read_table(later_hours.folders.table))
    done = retain.drop_old_rows(later_hours.folders, timedelta(hours=1), cause="test")
    assert (done.plan.hours, len(read_table(later_hours.folders.table))) == (2, rows - done.plan.rows)
    found = proof(later_hours)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    assert "rows of batches up to 2 were dropped by retention" in found.scopes[0].note
    elsewhere = StreamFolders(later_hours.folders.stream, tmp_path / "forged")
    forged = Forged.copy(later_hours.folders.table.parent, elsewhere.table.parent)
    path = min(forged.files("table"))
    forged.rewrite("table", path, [])
    assert {each.kind for each in proof(later_hours, elsewhere).violations} == {ViolationKind.ROW_MISSING}


def test_a_compacted_ledger_is_proven_with_the_files_it_replaced_and_without_them(three_hours: LocalRuns) -> None:
    folders = three_hours.folders
    assert compact_ledger(folders, open_table(folders).base().head).hours == 2
    found = proof(three_hours)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    for path in folders.ledger.glob("*.parquet"):
        os.utime(path, (time.time() - 2 * REPLACED_SECONDS,) * 2)
    assert compact_ledger(folders, open_table(folders).base().head).replaced_deleted == 4
    found = proof(three_hours)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())


def test_a_row_that_a_compacted_ledger_lacks_is_found(three_hours: LocalRuns) -> None:
    folders = three_hours.folders
    compact_ledger(folders, open_table(folders).base().head)
    elsewhere = StreamFolders(folders.stream, folders.root.parent / "forged")
    forged = Forged.copy(folders.root / folders.stream, elsewhere.root / elsewhere.stream)
    path = min(name for name in forged.files("ledger") if name.startswith("compacted-"))
    forged.rewrite("ledger", path, forged.rows("ledger", path)[1:])
    found = proof(three_hours, elsewhere)
    assert [each.kind for each in found.violations] == [ViolationKind.SIDE_FILE_MISSING]


class Counting(Wider):
    """A release that adds two columns, and changes the fold."""

    def row(self, name: str, value: int, total: int) -> WiderReading:
        return super().row(name, value, total + 1)


def test_rows_of_before_a_column_was_added_are_compared_in_the_columns_that_they_have(
    feed: Feed, runs: LocalRuns, tmp_path: Path
) -> None:
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.of(release(feed.pattern, First())).run()
    feed.send(topic, [update(4, a=1)])
    runs.of(release(feed.pattern, Wider())).run()
    assert proof(runs.of(release(feed.pattern, Wider()))).status is InvariantStatus.PROVEN
    changed = proof(runs.of(release(feed.pattern, Counting())))
    assert changed.status is InvariantStatus.VIOLATED
    assert {violation.kind for violation in changed.violations} == {ViolationKind.ROW_CHANGED}
    assert [violation.offset for violation in changed.violations] == [1, 1, 2, 2, 3]
    elsewhere = StreamFolders(runs.folders.stream, tmp_path / "forged")
    forged = Forged.copy(runs.folders.table.parent, elsewhere.table.parent)
    forged.name_copy("table", next(path for path in forged.files("table") if len(forged.rows("table", path)) > 1))
    doubled = proof(runs.of(release(feed.pattern, Wider())), elsewhere)
    assert {violation.kind for violation in doubled.violations} == {ViolationKind.ROW_DOUBLED}


@pytest.fixture
def grown(feed: Feed, runs: LocalRuns) -> LocalRuns:
    """A table that got two columns after its first batch, compacted: the first rows hold null in them."""
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.of(release(feed.pattern, First())).run()
    runs = runs.of(release(feed.pattern, Wider()))
    for number in (4, 5):
        feed.send(topic, [update(number, a=1)])
        runs.run()
    close_hour(runs.folders)
    compact_stream(runs.folders)
    return runs


def test_null_in_an_added_column_is_a_changed_row_only_where_the_row_was_written_after_it(
    grown: LocalRuns, tmp_path: Path
) -> None:
    elsewhere = StreamFolders(grown.folders.stream, tmp_path / "forged")
    forged = Forged.copy(grown.folders.table.parent, elsewhere.table.parent)
    (path,) = forged.files("table")
    held = [(row["_offset"], row["_row"], row["weight"]) for row in forged.rows("table", path)]
    assert held == [(1, 0, None), (1, 1, None), (2, 0, None), (2, 1, None), (3, 0, 7), (4, 0, 7)]
    found = proof(grown)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    forged.change("table", path, 4, weight=None)
    forged.change("table", path, 2, weight=5)
    assert [(each.kind, each.offset, each.expected, each.found) for each in proof(grown, elsewhere).violations] == [
        (ViolationKind.ROW_CHANGED, 2, "row 0: weight = 7", "5"),
        (ViolationKind.ROW_CHANGED, 3, "row 0: weight = 7", "None"),
    ]


@pytest.mark.parametrize(("batch", "ends"), [(1, (4, 0)), (2, (4, 0)), (3, (7, 0)), (4, (9, 2)), (5, (9, 2))])
def test_the_rows_of_a_batch_end_behind_those_of_the_timers_that_its_end_set_going(
    tmp_path: Path, batch: int, ends: tuple[int, int]
) -> None:
    """A partition that starts with batch 3 has no rows before it."""
    counts = ("messages", "rows", "accepted_without_row", "skipped", "repeats", "gaps", "dropped", "quarantined")
    place = {"topic_id": "id", "topic": "t", "partition": 0, "suspended_from": 0, "holes": []}
    read = {"generation": 1, "batch": 3, "start": 4, "until": 7}
    row = msgspec.convert(place | read | dict.fromkeys(counts, 0), LedgerRange)
    later = msgspec.structs.replace(row, batch=4, start=7, until=9, rows_emitted=2)
    spool = RowSpool(tmp_path, "ledger", BY_BATCH)
    spool.add(pa.Table.from_pylist([msgspec.structs.asdict(each) for each in (later, row)]))
    (rows,) = spool.finish().values()
    assert LedgerChain(row.place, StoredRanges(rows)).end_of(batch) == ends


def resumed_without_its_session(feed: Feed, runs: LocalRuns, *values: bytes) -> str:
    """Send messages that halt the stream, skip their session and run again; return the topic."""
    topic = feed.create("values")
    feed.send(topic, list(values))
    with pytest.raises(IntegrityLost):
        runs.run()
    resume_stream(runs.folders, why="test", who="test", accepted=[SkipSession(topic, 0, "s")])
    runs.run()
    return topic


def test_a_proof_that_begins_after_an_operator_skipped_a_session_knows_that_it_waits(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = resumed_without_its_session(feed, runs, snapshot(1, a=1), update(5, a=1))
    feed.expire(topic, 2)
    feed.send(topic, [update(6, a=1)])
    runs.run()
    found = proof(runs)
    assert (found.status, found.violations, found.counts["quarantined"]) == (InvariantStatus.PROVEN, (), 1)
    assert [scope.note.partition(", ")[0] for scope in found.scopes] == [
        "Kafka keeps nothing before 2; state before it taken from batch 3"
    ]


def test_a_session_that_an_operator_skipped_under_a_class_without_snapshots_is_proven(
    feed: Feed, runs: LocalRuns
) -> None:
    runs = runs.of(adding(feed.pattern, Once(keep_ids=100)))
    resumed_without_its_session(feed, runs, snapshot(1, a=1), update(2, a=1), update(2, a=9), update(3, a=1))
    found = proof(runs)
    assert (found.status, found.violations, found.counts["quarantined"]) == (InvariantStatus.PROVEN, (), 1)


def test_a_state_that_is_stored_row_by_row_is_proven(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    runs = runs.of(release(feed.pattern, InRows()))
    for first in (1, 22, 43):
        feed.send(topic, session(20, first=first))
        runs.run()
    found = proof(runs)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())


class OffByOne(InRows):
    """Stores another value than it emits."""

    def on_update(self, state: TableState, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Yield a row for each value."""
        yield from super().on_update(state, message, record)
        state.held["a"] += 1


def test_another_state_is_shown_where_it_is_stored_row_by_row(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), [snapshot(1, a=1), update(2, a=1)])
    runs.of(release(feed.pattern, OffByOne())).run()
    (violation,) = proof(runs.of(release(feed.pattern, InRows()))).violations
    assert violation.kind is ViolationKind.STATE_DIFFERS
    assert (violation.expected, violation.found) == (
        "session 's' after batch 1: {'held': {'a': 2}, 'note': ''}",
        "{'held': {'a': 3}, 'note': ''}",
    )


def test_a_topic_that_grows_before_its_first_message_is_proven(feed: Feed, runs: LocalRuns) -> None:
    runs = runs.of(adding(feed.pattern, BY_SUSPENSION))
    topic = feed.create("values")
    other = feed.create("other")
    feed.send(other, session(1))
    runs.run()
    feed.grow(topic, partitions=2)
    for partition in range(2):
        feed.send(topic, session(1), partition=partition)
    runs.run()
    found = proof(runs)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    assert found.counts["rows"] == 6  # two of each partition


def test_compaction_changes_nothing_that_is_proven(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=2)
    for number in range(3):
        feed.send(topic, session(5) if number == 0 else [update(7 + 3 * (number - 1) + n, a=1) for n in range(3)])
        runs.run()
    before = proof(runs)
    close_hour(runs.folders)
    compact_stream(runs.folders)
    after = proof(runs)
    assert len(Forged(runs.folders.table.parent).files("table")) == 1
    assert (after.status, after.counts, after.violations) == (InvariantStatus.PROVEN, before.counts, ())


def test_states_that_housekeeping_deletes_while_a_proof_reads_are_no_violation(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One proof starts at the first offset, the other at a stored state that is deleted before it starts."""
    topic = feed.create("values")
    for message in session(9):
        feed.send(topic, [message])
        runs.run()

    def clean_up_late(moment: str) -> VerifyReport:
        act = getattr(proving, moment)
        output = open_table(runs.folders)

        def after(*arguments: Any, **named: Any) -> Any:
            monkeypatch.setattr(proving, moment, act)
            found = act(*arguments, **named)
            before = set(runs.folders.state.iterdir())
            run_housekeeping(runs.folders, retention_seconds=0)
            assert before > set(runs.folders.state.iterdir()), "no state was deleted: the test proves nothing"
            return found

        head = output.base().head
        output.commit(raise_rewind_floor(head.generation, head.batch - 3))
        monkeypatch.setattr(proving, moment, after)
        return proof(runs)

    found = clean_up_late("make_chains")
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    assert any("before the rewind floor, batch 10, were deleted since" in note for note in found.notes)
    for number in range(11, 16):
        feed.send(topic, [update(number, a=1)])
        runs.run()
    feed.expire(topic, 11)
    found = clean_up_late("find_first_with_state")
    assert (found.status, found.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert any("no state to start with" in note for note in found.notes)


def test_a_proof_beside_an_erasure_finds_no_violation_and_says_why_it_ended(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("values")
    for key in ("gone", "stays"):
        feed.send(topic, session(3), key=key)
    runs.run()
    request = EraseRequest(session="gone", drop_state=True)

    def erase_first(*arguments: Any) -> Any:
        monkeypatch.setattr(proving, "make_chains", make_chains)
        erase_session(runs.folders, request, EraseContext(), who="ann", why="request 4711")
        for path in runs.folders.root.rglob("*"):
            os.utime(path, (time.time() - 60, time.time() - 60))
        run_housekeeping(runs.folders, retention_seconds=0)
        return make_chains(*arguments)

    monkeypatch.setattr(proving, "make_chains", erase_first)
    with pytest.raises(LockstepError, match="replaced rows while they were verified") as ended:
        proof(runs)
    assert ended.value.next_step.startswith("lockstep verify adding again")
    assert proof(runs).violations == ()


def test_states_that_housekeeping_deleted_are_no_violation_and_those_that_it_kept_are_compared(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    for message in session(9):
        feed.send(topic, [message])
        runs.run()
    state = runs.folders.state
    before = set(state.iterdir())
    run_housekeeping(runs.folders, retention_seconds=0)
    assert before > set(state.iterdir()), "no state was deleted: the test proves nothing"
    found = proof(runs)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    assert any("before the rewind floor, batch 10, were deleted since" in note for note in found.notes)
    feed.expire(topic, 4)
    found = proof(runs)
    assert (found.status, found.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert "no state from before it is kept" in found.scopes[0].note
    for path in state.iterdir():
        path.unlink()
    assert {each.kind for each in proof(runs).violations} <= {ViolationKind.STATE_DAMAGED}


def test_of_a_topic_that_was_made_anew_only_its_new_life_is_read_again(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, Ordered()))
    feed.send(topic, [snapshot(1, a=1), update(2, a=1)])
    runs.run()
    feed.delete(topic)
    feed.create_again("values")
    feed.send(topic, [snapshot(1, a=5), update(2, a=1), update(3, a=1)])
    runs.run()
    found = proof(runs)
    assert (found.status, found.messages) == (InvariantStatus.PROVEN, 3)
    assert sorted(scope.note for scope in found.scopes) == [
        "",
        "the topic is re-created: order and counts only; its end is not known",
    ]
    forged = Forged(runs.folders.table.parent)
    ids = {scope.note: scope.topic_id for scope in found.scopes}
    place = next(each for each in forged.all_rows("table") if each[2]["_topic_id"] != ids[""])
    beyond = place[2] | {"_emit_offset": 5}
    forged.rewrite("table", place[0], [*forged.rows("table", place[0]), beyond])
    assert ViolationKind.ROW_UNCLAIMED in {each.kind for each in proof(runs).violations}


@pytest.mark.parametrize(
    ("forgery", "found"),
    [
        ({}, ""),
        ({"last_end": 4}, "end 4, observed "),
        ({"last_end_age_seconds": 61.0}, "end 3, observed 61 s before"),
        ({"last_end": None, "last_end_age_seconds": None}, "no observation"),
    ],
)
def test_a_strict_stream_leaves_a_topic_only_at_its_end(
    feed: Feed,
    runs: LocalRuns,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forgery: dict[str, object],
    found: str,
) -> None:
    topic = feed.create("values")
    claim = WriterStartup.claim
    feed.send(topic, session(2))
    runs.run()

    def delete_first(startup: WriterStartup, cancelled: Callable[[], bool]) -> WriterClaim:
        feed.delete(topic)
        return claim(startup, cancelled)

    monkeypatch.setattr(WriterStartup, "claim", delete_first)
    runs.run()
    forged = Forged.copy(runs.folders.table.parent, tmp_path / "forged" / runs.stream.name)
    (place,) = (each for each in forged.all_rows("ledger") if each[2]["lifecycle"] == "deleted")
    forged.change("ledger", place[0], place[1], **forgery)
    violations = proof(runs, StreamFolders(runs.stream.name, tmp_path / "forged")).violations
    assert [each.kind for each in violations] == ([ViolationKind.LEFT_UNREAD] if found else [])
    assert all(each.offset == 3 and str(each.found).startswith(found) for each in violations)


def test_a_strict_stream_that_suspends_may_leave_a_topic_that_was_created_again(feed: Feed, runs: LocalRuns) -> None:
    """It names no loss of the messages that were never read, and states that their end is not known."""
    suspending = runs.of(adding(feed.pattern, BY_SUSPENSION))
    topic = feed.create("values")
    feed.send(topic, session(2))
    suspending.run()
    feed.send(topic, session(1, first=9))
    feed.delete(topic)
    feed.create_again("values")
    feed.send(topic, session(3))
    assert suspending.run().value == "all that was available is committed"
    assert proof(suspending, suspending.folders).violations == ()


def test_a_session_that_goes_on_in_two_partitions_is_found(feed: Feed, runs: LocalRuns) -> None:
    """A single run does not see it if the session started before the run."""
    topic = feed.create("values", partitions=2)
    feed.send(topic, session(2), key="s", partition=0)
    runs.run()
    feed.send(topic, session(2), key="s", partition=1)
    runs.run()
    (found,) = proof(runs).violations
    assert (found.kind, found.found) == (ViolationKind.SESSION_IN_TWO_PARTITIONS, "partitions [0, 1]")


def test_a_class_without_a_second_gate_is_not_proven_and_never_said_to_be(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(5))
    integrity = Strict(evidence=Checksum())
    runs = runs.of(adding(feed.pattern, integrity))
    object.__setattr__(integrity, "evidence", Unread())
    runs.run()
    found = proof(runs)
    assert found.status is InvariantStatus.NOT_PROVEN
    assert {each.invariant.value: each.status for each in found.invariants} == {
        "I1": InvariantStatus.NOT_PROVEN,
        "I2": InvariantStatus.PROVEN,
        "I3": InvariantStatus.NOT_PROVEN,
        "I8": InvariantStatus.PROVEN,
        "I9": InvariantStatus.NOT_CLAIMED,
    }
    assert found.notes == ("Strict by Unread cannot be proven yet: no second gate knows it",)


@pytest.mark.parametrize("reorder", [True, False])
def test_what_waits_in_one_batch_and_is_released_in_another_is_proven(
    feed: Feed, runs: LocalRuns, *, reorder: bool
) -> None:
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, FuzzyWindow(lateness=timedelta(minutes=5), reorder=reorder)))
    for values in ([snapshot(1, a=1), update(4, a=1), update(3, a=1)], [update(2, a=1), b"{", update(9, a=1)]):
        feed.send(topic, values)
        runs.run()
    found = proof(runs)
    assert (found.status, found.violations, found.notes) == (InvariantStatus.PROVEN, (), ())
    assert found.counts["released"] == (2 if reorder else 0)


@pytest.mark.parametrize("reorder", [True, False])
def test_a_message_like_one_of_before_the_numbers_began_anew_is_applied_and_proven(
    feed: Feed, runs: LocalRuns, *, reorder: bool
) -> None:
    again = encoded("update", 2, {"a": 5})
    runs = runs.of(bookings(feed.pattern, FuzzyWindow(lateness=timedelta(minutes=5), reorder=reorder)))
    feed.send(
        feed.create("values"),
        [encoded("snapshot", 1, {"a": 1}), again, encoded("snapshot", 1, {"a": 7}, restarts_sequence=True), again],
    )
    runs.run()
    found = proof(runs)
    assert [row["amount"] for row in read_table(runs.folders.table).to_pylist()] == [1, 6, 7, 12]
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())


def test_a_silent_partition_goes_on_by_the_clock_and_is_proven(feed: Feed, runs: LocalRuns) -> None:
    """Its watermark moves in ledger rows without offsets; the rows of its timers are at the next offset."""
    topic = feed.create("values")
    silent = EventTime(session_idle=timedelta(milliseconds=1), idle_advance=timedelta(milliseconds=300))
    runs = runs.of(replace(runs.stream, integrity=NoIntegrity(), event_time=silent))
    feed.send(topic, session(3), key="a")
    stop = threading.Event()
    writer = threading.Thread(target=runs.run, kwargs={"trigger": Every(seconds=0.1), "stop": stop})
    writer.start()
    try:
        deadline = time.monotonic() + ADVANCED_SECONDS_MAX
        while not any(not row["messages"] and row["watermark"] for row in ledger_of(runs)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        feed.send(topic, session(3), key="b")
    finally:
        stop.set()
        writer.join()
    runs.run()
    found = proof(runs)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())


def ledger_of(runs: LocalRuns) -> list[dict[str, Any]]:
    """Return the rows of the ledger; none before it exists."""
    if not (runs.folders.ledger / "_delta_log").exists():
        return []
    return [row for _, _, row in Forged(runs.folders.table.parent).all_rows("ledger")]


def test_a_transform_of_today_that_makes_other_rows_of_old_messages_is_shown(feed: Feed, runs: LocalRuns) -> None:
    """The proof folds with today's declaration."""
    topic = feed.create("values")
    feed.send(topic, session(5))
    runs.run()
    stricter = runs.of(replace(runs.stream, limits=replace(runs.stream.limits, message_bytes=45)))
    found = proof(stricter)
    assert found.status is InvariantStatus.VIOLATED
    assert {each.kind for each in found.violations} == {ViolationKind.PAST_VIOLATION}
    assert any("nothing is proven: undecodable" in note for note in found.notes)


def test_a_ledger_that_is_one_batch_behind_its_table_is_no_violation(feed: Feed, runs: LocalRuns) -> None:
    """A writer that dies between the two commits causes this; its next start brings the ledger forward."""
    topic = feed.create("values")
    for number in range(2):
        feed.send(topic, session(3) if number == 0 else [update(5, a=1)])
        runs.run()
    max((runs.folders.ledger / "_delta_log").glob("*.json")).unlink()
    assert proof(runs).status is InvariantStatus.PROVEN


def test_a_byte_of_a_ledger_file_that_no_comparison_sees_is_found(feed: Feed, runs: LocalRuns) -> None:
    """Every value is readable and correct, but a start refuses the file by the checksum in its name."""
    feed.send(feed.create("values"), session(3))
    runs.run()
    path = min(runs.folders.ledger.glob("*.parquet"))
    path.write_bytes(path.read_bytes().replace(b"parquet-cpp", b"parquet-cpq"))
    found = [(each.kind, each.found) for each in proof(runs).violations]
    problem = f"{path} is not as it was written; no position is read without it"
    assert (ViolationKind.SIDE_FILE_CHANGED, problem) in found


def test_a_side_file_with_a_column_of_another_type_is_named(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(3))
    runs.run()
    forged = Forged.copy(runs.folders.table.parent, runs.root / "forged" / runs.folders.stream)
    (file,) = forged.files("ledger")
    path = forged.folder / "ledger" / file
    rows = pq.ParquetFile(path).read()
    at = rows.schema.get_field_index("topic")
    forged.replace("ledger", file, rows.set_column(at, "topic", rows["topic"].cast(pa.binary())))
    found = proof(runs, StreamFolders(runs.folders.stream, runs.root / "forged")).violations
    changed = [each.found for each in found if each.kind is ViolationKind.SIDE_FILE_CHANGED]
    assert [each.startswith("topic: a column of type") for each in changed] == [True]


def test_a_ledger_that_is_two_batches_behind_is_found(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    for number in range(2):
        feed.send(topic, session(3) if number == 0 else [update(5, a=1)])
        runs.run()
    for path in sorted((runs.folders.ledger / "_delta_log").glob("*.json"))[-2:]:
        path.unlink()
    found = proof(runs)
    assert [each.kind for each in found.violations] == [ViolationKind.SIDE_FILE_MISSING]
