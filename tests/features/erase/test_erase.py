"""An erasure of tables in the engine's format: removed and kept rows, counts of the proof, kills and races."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.derived import Export
from lockstep.errors import CommitUnknown, NotCommitted
from lockstep.features.compaction.run import Outcome, Rewriter, compact_in_process, compact_stream
from lockstep.features.compaction.side_files import compact_side_tables, plan_side_tables
from lockstep.features.erase import erase
from lockstep.features.erase import rows as rewriting
from lockstep.features.erase.commit import ErasureOvertaken, commit_erasure
from lockstep.features.erase.erase import (
    EraseContext,
    EraseReason,
    EraseRequest,
    RangeEnds,
    count_erased,
    erase_session,
    finish_erasing,
    prepare_erasure,
    read_range_ends,
)
from lockstep.features.erase.proof import ErasedSessions
from lockstep.features.export import write as write_hours
from lockstep.features.export.dataset import list_exported_hours, publish_hour
from lockstep.features.export.export import ExportResult, export_stream
from lockstep.features.export.kept_rows import EXPORTED
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.quality.increment import make_state_path
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.model.commit_hour import compute_next_hour, find_current_hour
from lockstep.model.position import TopicIdPartition
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.plan_frame import Refused
from lockstep.progress import send_progress
from lockstep.storage import LocalStorage
from lockstep.table import commit_kinds, delta_log, ledger, side_tables
from lockstep.table.commit import BatchCommit, OutputLog, Proposal, Writer, commit_batch, raise_rewind_floor
from lockstep.table.foreign_commits import ForeignCommit
from lockstep.table.head import Origin
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import FORGOTTEN, LedgerRow, write_ledger
from lockstep.table.live_files import LiveFiles
from lockstep.table.parquet import list_named_files
from lockstep.table.quarantine import ERASED, KILLED_WORKER, UNKNOWN_SCHEMA, QuarantineRow, write_quarantine
from lockstep.table.session_digest import compute_session_digest
from lockstep.table.side_files import list_side_files
from lockstep.verify.ledger import make_chains
from lockstep.verify.read_stored import read_stored
from lockstep.verify.report import Violations
from lockstep.verify.rows import TableRows
from lockstep.verify.side_tables import ExpectedSideRows, SideTableCheck
from lockstep.verify.verify import check_without_kafka
from tests.features.erase.dying_erase import MOMENTS
from tests.features.export.declared import make_stream
from tests.features.quality.stream_tables import CLEAN, Part, Place, clean_batches, quiet, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from lockstep.features.compaction.rewrite import RewriteTask
    from lockstep.features.erase.commit import ErasureCommit
    from lockstep.features.export.dataset import HourManifest
    from lockstep.table.commit import Base

HOURS = ("2026-01-01T00", "2026-01-01T00", "2026-01-01T01", "2026-01-01T03")
CONTEXT = EraseContext()


@pytest.fixture(autouse=True)
def no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report that the writer is dead: the real check takes seconds."""
    monkeypatch.setattr(erase, "is_writer_alive", lambda *_: False)


def erased(
    folders: StreamFolders, session: str = "s1", topic: str = "", context: EraseContext = CONTEXT
) -> erase.SessionErased:
    return erase_session(folders, EraseRequest(session=session, topic=topic), context, who="ann", why="test")


def read_rows(folders: StreamFolders) -> list[dict[str, object]]:
    """Return all rows, ordered by partition, offset and row."""
    rows = DeltaTable(folders.table).to_pyarrow_table().to_pylist()
    return sorted(
        rows, key=lambda row: tuple(row[name] for name in ("_topic_id", "_partition", "_emit_offset", "_row"))
    )


def list_live(folders: StreamFolders) -> set[str]:
    """Return the data files of the newest version."""
    return {path.relative_to(folders.table).as_posix() for path, _ in list_named_files(folders.table)}


def write_forgotten(root: Path, count: int) -> StreamFolders:
    """Write tables of topics that were read and then forgotten, each by a separate batch."""
    places = [Place(f"sensors.{number}", f"id-{number}", 0) for number in range(count)]
    forgotten = [
        msgspec.structs.replace(quiet(place, 2 + number), lifecycle=FORGOTTEN) for number, place in enumerate(places)
    ]
    later = [{place: Part([], [row])} for place, row in zip(places, forgotten, strict=True)]
    return write(root, [*clean_batches(1, places), *later])


def count_violations(folders: StreamFolders, scratch: Path) -> list[object]:
    """Return the violations found without Kafka: order, counts and side files."""
    violations = Violations()
    stored = read_stored(folders, violations, scratch)
    with TableRows(scratch) as rows:
        rows.load(folders.table, stored.data_files, stored.statistics, violations)
        rows.check_order(violations)
        for key, chain in make_chains(stored.ledger, violations).items():
            kept, late = (
                ExpectedSideRows(chain.place, table.get(key), violations) for table in (stored.quarantine, {})
            )
            aside = SideTableCheck(kept, late, violations)
            cursor = rows.cursor(key)
            known = ErasedSessions(stored.head.table_id, chain)
            check_without_kafka(chain.ranges, cursor, aside, violations, removed=known)
    return list(violations.listed)


def add_quarantine(folders: StreamFolders, *sessions: str, found: str = "2") -> None:
    """Commit a batch with messages in quarantine, one file per message."""
    output = OutputLog(folders.table)
    head, (place, *_) = output.base().head, CLEAN
    number = head.batch + 1
    row = QuarantineRow(
        generation=head.generation, batch=number, topic_id=place.topic_id, topic=place.topic, partition=0, offset=0,
        session=None, cause="gap", expected="1", found=found, timestamp=None, key=b"k", value=b"v", value_bytes=1,
        headers=[],
    )  # fmt: skip
    files = tuple(
        write_quarantine(
            folders.quarantine,
            [msgspec.structs.replace(row, offset=10 * number + at, session=session)],
            label=f"g{head.generation}-e{head.epoch}-b{number}",
        )
        for at, session in enumerate(sessions)
    )
    held = write_ledger(
        folders.ledger, [_keep(row, number, len(sessions)) for row in ledger.read_positions(folders, head).values()]
    )
    planned = BatchCommit(number=number, commit_hour=head.hour, ledger=held, quarantine=files)
    output.commit(commit_batch(Writer(epoch=head.epoch, generation=head.generation), planned))
    side_tables.SideLogs(folders).catch_up(output.base().head)


def _keep(row: LedgerRow, batch: int, quarantined: int) -> LedgerRow:
    """Return the row of a batch that read nothing except quarantined messages of the first partition."""
    kept = msgspec.structs.replace(quiet(CLEAN[0], batch), topic=row.topic, topic_id=row.topic_id)
    count = quarantined if (row.topic_id, row.partition) == (CLEAN[0].topic_id, 0) else 0
    return msgspec.structs.replace(
        kept, partition=row.partition, start=row.until, until=row.until, epoch=row.epoch, quarantined=count
    )


def read_quarantine(folders: StreamFolders) -> list[tuple[object, ...]]:
    rows = DeltaTable(folders.quarantine).to_pyarrow_table().to_pylist()
    return sorted((row["batch"], row["offset"], row["session"], row["value"], row["expected"]) for row in rows)


@settings(max_examples=5, deadline=None)
@given(
    batches=st.integers(1, 4),
    session=st.sampled_from(["s0", "s1", "s2"]),
    topic=st.sampled_from(["", "sensors.a", "sensors.b"]),
    compacted=st.booleans(),
    again=st.booleans(),
)
def test_only_the_session_goes_and_the_proof_counts_it(
    tmp_path_factory: pytest.TempPathFactory, *, batches: int, session: str, topic: str, compacted: bool, again: bool
) -> None:
    root = tmp_path_factory.mktemp("erase")
    folders = write(root, clean_batches(batches), hours=HOURS[:batches])
    if compacted:
        close_hour(folders)
        compact_stream(folders)
    before = read_rows(folders)
    left = [row for row in before if row["_session"] != session or topic not in {"", row["_topic"]}]
    done = erased(folders, session, topic)
    assert done.plan.rows == len(before) - len(left)
    assert read_rows(folders) == left
    if again:
        close_hour(folders)
        compact_stream(folders)
        other = "s2" if session != "s2" else "s0"
        erased(folders, other)
        left = [row for row in left if row["_session"] != other]
        assert read_rows(folders) == left
    scratch = root / "scratch"
    scratch.mkdir()
    assert count_violations(folders, scratch) == []


def test_housekeeping_deletes_all_data_files_that_held_the_session(tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(2))  # file names of an earlier build, without the batch
    close_hour(folders)
    compact_stream(folders)
    erased(folders)
    run_housekeeping(folders, retention_seconds=3600.0)
    names = {path.relative_to(folders.table).as_posix() for path in folders.table.glob("commit_hour=*/*.parquet")}
    assert names == list_live(folders)
    assert min(delta_log.list_versions(folders.table)) == OutputLog(folders.table).base().head.batch_version


def test_a_compaction_that_was_planned_before_an_erasure_is_lost(tmp_path: Path) -> None:
    batches = clean_batches(2)
    del batches[0][CLEAN[2]]
    folders = write(tmp_path, batches, hours=HOURS[1:3])
    rewriter = compact_in_process()

    def erase_meanwhile(tasks: Sequence[RewriteTask]) -> Sequence[Outcome]:
        erased(folders, "s2", CLEAN[2].topic)  # in an hour that is not compacted
        return rewriter.rewrite(tasks)

    done = compact_stream(folders, rewriter=Rewriter(erase_meanwhile))
    assert (done.bins, done.bins_lost) == (0, 1)
    assert compact_stream(folders).bins_lost == 0


def test_a_row_that_is_missing_besides_is_found(tmp_path: Path) -> None:
    folders = write(tmp_path / "t", clean_batches(2))
    erased(folders)
    path = folders.table / min(list_live(folders))
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
    assert "ROW" in repr(count_violations(folders, tmp_path)).upper()


def test_a_plan_opens_the_ledger_as_often_however_many_topics_were_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    looks: list[object] = []
    really_open = delta_log.open_delta_table

    class Counted(Counter[Any]):
        def __iter__(self) -> Iterator[Any]:
            looks.append(self)
            return super().__iter__()

    def open_table(folder: Path, *, version: int | None = None) -> DeltaTable:
        opened.append(folder)
        return really_open(folder, version=version)

    def plan(count: int) -> tuple[int, int]:
        folders = write_forgotten(tmp_path / str(count), count)
        opened.clear()
        looks.clear()
        planned = prepare_erasure(folders, EraseRequest(session="s1"), CONTEXT).plan
        assert {(each.topic, each.position) for each in planned.partitions} == {
            (f"sensors.{number}", 7) for number in range(count)
        }
        return opened.count(folders.ledger), len(looks)

    monkeypatch.setattr(delta_log, "open_delta_table", open_table)
    monkeypatch.setattr(erase, "Counter", Counted)
    assert plan(9) == plan(3)


def test_log_ledger_and_head_do_not_name_the_session(tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(1))
    done = erased(folders, "s1")
    head = OutputLog(folders.table).base().head
    assert head.erasure is not None
    assert (head.erasure.digest, head.erasure.is_finished) == (compute_session_digest(head.table_id, "s1"), True)
    assert (head.rewind_floor, head.batch, head.erasure.cause) == (2, 2, "test (ann)")
    assert done.plan.digest == head.erasure.digest
    entry = (folders.table / "_delta_log" / f"{done.version:020d}.json").read_text()
    assert '"s1"' not in entry


@pytest.mark.parametrize(
    ("request_", "context", "kinds"),
    [
        (EraseRequest(session="nobody"), CONTEXT, [EraseReason.NOTHING]),
        (EraseRequest(session="s1"), "exported", [EXPORTED]),
        (EraseRequest(session="s1", topic="sensors.c"), CONTEXT, [EraseReason.NOTHING]),
    ],
)
def test_an_erasure_is_refused_and_changes_nothing(
    tmp_path: Path, request_: EraseRequest, context: EraseContext | str, kinds: list[EraseReason]
) -> None:
    folders = write(tmp_path, clean_batches(1))
    if isinstance(context, str):
        (tmp_path / context / f"commit_hour={HOURS[0]}").mkdir(parents=True)
        context = EraseContext(make_stream(Export(folder=str(tmp_path / context))))
    before = OutputLog(folders.table).base()
    assert [each.kind for each in prepare_erasure(folders, request_, context).plan.obstacles] == kinds
    with pytest.raises(Refused) as refused:
        erase_session(folders, request_, context, who="ann", why="test")
    assert [each.kind for each in refused.value.obstacles] == kinds
    assert OutputLog(folders.table).base() == before


EXPORTING = make_stream(Export())


@pytest.fixture
def exportable(tmp_path: Path) -> StreamFolders:
    """A table whose closed hours can all be exported: a rewind cannot reach them."""
    folders = write(tmp_path, clean_batches(4), hours=HOURS)
    compact_stream(folders)
    output = OutputLog(folders.table)
    head = output.base().head
    output.commit(raise_rewind_floor(head.generation, head.batch))
    return folders


def list_exported_sessions(folders: StreamFolders) -> set[object]:
    found = [folders.export / f"commit_hour={hour}" for hour in list_exported_hours(folders.export)]
    return {session for hour in found for session in pq.read_table(hour, partitioning=None)["_session"].to_pylist()}


def test_an_erasure_before_an_hour_is_published_withdraws_it(
    exportable: StreamFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_late(folder: Path, staged: Path, manifest: HourManifest) -> bool:
        monkeypatch.setattr(write_hours, "publish_hour", publish_hour)
        erased(exportable, context=EraseContext(EXPORTING))
        return publish_hour(folder, staged, manifest)

    monkeypatch.setattr(write_hours, "publish_hour", publish_late)
    done = export_stream(EXPORTING, exportable)
    assert done.hours_lost > 0
    assert list_exported_sessions(exportable) == set()
    compact_stream(exportable)
    assert export_stream(EXPORTING, exportable).hours_lost == 0
    assert "s1" not in list_exported_sessions(exportable)


def test_an_hour_that_is_published_as_an_erasure_commits_is_withdrawn(
    exportable: StreamFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = list[ExportResult]()

    def commit_late(planned: ErasureCommit, check: Callable[[Base], None]) -> Proposal:
        def check_and_export(base: Base) -> None:
            check(base)
            exported.append(export_stream(EXPORTING, exportable))

        return commit_erasure(planned, check_and_export)

    monkeypatch.setattr(erase, "commit_erasure", commit_late)
    done = erased(exportable, context=EraseContext(EXPORTING))
    assert exported[0].hours
    assert set(list_exported_hours(exportable.export)).isdisjoint(done.plan.hours)


def test_an_hour_that_is_exported_during_an_erasure_refuses_it(
    exportable: StreamFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_late(planned: ErasureCommit, check: Callable[[Base], None]) -> Proposal:
        export_stream(EXPORTING, exportable)
        return commit_erasure(planned, check)

    monkeypatch.setattr(erase, "commit_erasure", commit_late)
    with pytest.raises(Refused, match="exported hours hold its rows"):
        erased(exportable, context=EraseContext(EXPORTING))
    assert "s1" in {row["_session"] for row in read_rows(exportable)}


def test_an_erasure_leaves_a_file_where_it_was_in_the_order_of_its_hour(exportable: StreamFolders) -> None:
    before = {file.commit_hour: file.added_ms for file in LiveFiles(exportable.table).at(0)}
    erased(exportable)
    assert {file.commit_hour: file.added_ms for file in LiveFiles(exportable.table).at(0)} == before


def test_savepoints_refuse_it_or_go_with_it(tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(1))
    make_savepoint(folders, "release", who="ann", why="test")
    with pytest.raises(Refused, match="savepoints release keep its rows"):
        erased(folders)
    accepting = EraseRequest(session="s1", drop_savepoints=True)
    noted = list[tuple[str, int, int]]()
    with send_progress(lambda *progress: noted.append(progress)):
        erase_session(folders, accepting, CONTEXT, who="ann", why="test")
    assert [doing for doing, done, total in noted if done == total] == ["writing files without the session"]
    assert OutputLog(folders.table).base().head.savepoints == ()


def test_a_compaction_that_comes_first_makes_it_plan_again_and_one_that_comes_later_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write(tmp_path, clean_batches(2))
    close_hour(folders)
    rewrite = rewriting.rewrite_without
    calls = list[str]()

    def compacted_meanwhile(*args: object) -> object:
        if not calls:
            compact_stream(folders)
        calls.append("")
        return rewrite(*args)  # type: ignore[arg-type]  # called unchanged

    before = read_rows(folders)
    monkeypatch.setattr(erase, "rewrite_without", compacted_meanwhile)
    assert erased(folders).plan.files == 1
    assert read_rows(folders) == [row for row in before if row["_session"] != "s1"]
    assert len(calls) == 6 + 1  # all files of the first plan, then the compacted file


def test_a_batch_that_comes_first_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = write(tmp_path, clean_batches(1))
    write_states = erase._write_states  # noqa: SLF001  # between plan and commit

    def written_meanwhile(*args: object) -> object:
        add_quarantine(folders, "s9")
        return write_states(*args)  # type: ignore[arg-type]  # called unchanged

    before = read_rows(folders)
    monkeypatch.setattr(erase, "_write_states", written_meanwhile)
    with pytest.raises(ErasureOvertaken, match="batch 2 or a savepoint was committed"):
        erased(folders)
    assert read_rows(folders) == before
    assert len(list(folders.table.glob("commit_hour=*/*.parquet"))) == 3


@pytest.mark.parametrize("drops", [False, True])
def test_a_savepoint_that_is_made_after_the_plan_keeps_the_session_from_being_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, drops: bool
) -> None:
    """The savepoint promises a restorable batch, and the operator has not agreed to drop it."""
    folders = write(tmp_path, clean_batches(1))
    if drops:
        make_savepoint(folders, "known", who="ann", why="test")
    write_states = erase._write_states  # noqa: SLF001  # between plan and commit

    def made_meanwhile(*args: object) -> object:
        make_savepoint(folders, "release", who="bob", why="test")
        return write_states(*args)  # type: ignore[arg-type]  # called unchanged

    before = read_rows(folders)
    files = list_files(folders)
    monkeypatch.setattr(erase, "_write_states", made_meanwhile)
    request = EraseRequest(session="s1", drop_savepoints=drops)
    with pytest.raises(ErasureOvertaken, match="batch 1 or a savepoint was committed"):
        erase_session(folders, request, CONTEXT, who="ann", why="test")
    head = OutputLog(folders.table).base().head
    assert [each.name for each in head.savepoints] == (["known"] if drops else []) + ["release"]
    assert (head.rewind_floor, head.erasure) == (0, None)
    assert (read_rows(folders), list_files(folders)) == (before, files)


def list_files(folders: StreamFolders) -> set[Path]:
    return set(folders.table.parent.rglob("*.parquet"))


@pytest.mark.parametrize("step", ["rewrite_without", "_make_commit", "commit_erasure"])
def test_an_erasure_on_a_full_disk_does_not_keep_it_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folders = write(tmp_path, clean_batches(2))
    before = list_files(folders)
    calls = list[str]()
    call = getattr(erase, step)

    def fail_at_last(*args: object) -> object:
        calls.append(step)
        if step == "rewrite_without" and len(calls) < 3:
            return call(*args)
        if step == "commit_erasure":
            raise NotCommitted("no space left on device", next_step="free some")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(erase, step, fail_at_last)
        with pytest.raises((OSError, NotCommitted), match=r"(?i)no space left"):
            erased(folders)
    assert list_files(folders) == before
    assert erased(folders).plan.files == 6


def test_an_erasure_whose_outcome_is_not_known_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry may be in the log."""
    folders = write(tmp_path, clean_batches(1))
    create = LocalStorage.create_whole

    def create_and_fail(self: LocalStorage, path: Path, content: bytes) -> None:
        create(self, path, content)
        monkeypatch.setattr(delta_log, "read_entry", lambda *_: None)
        raise OSError(errno.EIO, "no answer")

    with monkeypatch.context() as lost:
        lost.setattr(LocalStorage, "create_whole", create_and_fail)
        with pytest.raises(CommitUnknown):
            erased(folders)
    monkeypatch.undo()
    monkeypatch.setattr(erase, "is_writer_alive", lambda *_: False)
    assert {row["_session"] for row in read_rows(folders)} == {"s0", "s2"}


def test_messages_leave_the_quarantine_and_their_places_stay(tmp_path: Path) -> None:
    folders = write(tmp_path / "t", clean_batches(1))
    add_quarantine(folders, "s1", "s2")
    add_quarantine(folders, "s1")
    assert erased(folders).messages == 2
    assert read_quarantine(folders) == [
        (2, 20, None, None, ERASED),
        (2, 21, "s2", b"v", "1"),
        (3, 30, None, None, ERASED),
    ]
    assert len(list(folders.quarantine.glob("*.parquet"))) == 3
    assert count_violations(folders, tmp_path) == []


@pytest.mark.fault("F77")
def test_what_a_killed_erasure_left_is_finished_by_housekeeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write(tmp_path / "t", clean_batches(1))
    add_quarantine(folders, "s1", "s2")
    last_check = put_last_check(folders)
    with monkeypatch.context() as patched:
        patched.setattr(erase, "redact_side_tables", _die)
        with pytest.raises(KeyboardInterrupt):
            erased(folders)
    run_housekeeping(folders, retention_seconds=3600.0)
    assert not last_check.exists()
    assert min(delta_log.list_versions(folders.table)) == OutputLog(folders.table).base().head.batch_version
    assert [row[2] for row in read_quarantine(folders)] == [None, "s2"]
    assert finish_erasing(folders) == 0
    assert count_violations(folders, tmp_path) == []


@pytest.mark.fault("F77")
def test_the_same_command_after_a_kill_behind_the_commit_finishes_it_and_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write(tmp_path / "t", clean_batches(1))
    add_quarantine(folders, "s1", "s2")
    with monkeypatch.context() as patched:
        patched.setattr(erase, "redact_side_tables", _die)
        with pytest.raises(KeyboardInterrupt):
            erased(folders)
    done = erased(folders)
    erasure = OutputLog(folders.table).base().head.erasure
    assert erasure is not None
    assert (done.batch, done.version, done.messages) == (erasure.batch, erasure.version, 1)
    assert (done.plan.last_batch, done.plan.obstacles, erasure.is_finished) == (erasure.batch - 1, (), True)
    assert erased(folders).batch == erasure.batch
    for other in (EraseRequest(session="s1", topic="sensors.a"), EraseRequest(session="s9")):
        with pytest.raises(Refused, match="no row, state, message or decision"):
            erase_session(folders, other, CONTEXT, who="ann", why="test")


def put_last_check(folders: StreamFolders) -> Path:
    """Write the state that a check stores for the next check: it names the newest sessions."""
    path = make_state_path(folders)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"s1")
    return path


def _die(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.fault("F77")
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_erasure_that_is_killed_is_done_or_not_and_can_be_repeated(tmp_path: Path, moment: str) -> None:
    folders = write(tmp_path / "t", clean_batches(2))
    add_quarantine(folders, "s1", "s2")
    before = read_rows(folders)
    last_check = put_last_check(folders)
    command = [sys.executable, "-m", "tests.features.erase.dying_erase", str(folders.root), folders.stream, moment]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    landed = OutputLog(folders.table).base().head.erasure is not None
    left = [row for row in before if row["_session"] != "s1"]
    assert read_rows(folders) == (left if landed else before)
    if landed:
        finish_erasing(folders)
    else:
        erased(folders)
    assert not last_check.exists()
    assert read_rows(folders) == left
    assert [row[2] for row in read_quarantine(folders)] == [None, "s2"]
    assert count_violations(folders, tmp_path) == []


@pytest.mark.parametrize(("found", "left"), [("2", None), (KILLED_WORKER, KILLED_WORKER), (f"{UNKNOWN_SCHEMA}7",) * 2])
def test_of_a_message_that_the_proof_must_not_decode_the_finding_stays(
    tmp_path: Path, found: str, left: str | None
) -> None:
    folders = write(tmp_path / "t", clean_batches(1))
    add_quarantine(folders, "s1", found=found)
    assert erased(folders).messages == 1
    (row,) = DeltaTable(folders.quarantine).to_pyarrow_table().to_pylist()
    assert (row["expected"], row["found"], row["value"]) == (ERASED, left, None)


def test_quarantine_files_of_a_closed_hour_become_one_in_order(tmp_path: Path) -> None:
    folders = write(tmp_path / "t", clean_batches(1))
    for _ in range(3):
        add_quarantine(folders, "s1", "s2")
    before = read_quarantine(folders)
    head = OutputLog(folders.table).base().head
    assert plan_side_tables(folders, head) == ()
    next_hour = compute_next_hour(find_current_hour())
    assert plan_side_tables(folders, msgspec.structs.replace(head, hour=next_hour)) == ()  # health counts its files
    assert plan_side_tables(folders, msgspec.structs.replace(head, hour=compute_next_hour(next_hour)))
    later = msgspec.structs.replace(head, hour="2099-01-01T00")
    (part,) = plan_side_tables(folders, later)
    assert (part.table, len(part.files)) == ("quarantine", 6)
    done = compact_side_tables(folders, later)
    assert (done.files_before, done.files_after, done.rows) == (6, 1, 6)
    assert read_quarantine(folders) == before
    (file,) = list_side_files(DeltaTable(folders.quarantine))
    assert (file.name.first, file.name.last, file.is_compacted) == (2, 4, True)
    assert pq.read_table(folders.quarantine / file.path)["batch"].to_pylist() == [2, 2, 3, 3, 4, 4]
    assert count_violations(folders, tmp_path) == []
    assert compact_side_tables(folders, later).files_before == 0
    assert erased(folders).messages == 3
    assert count_violations(folders, tmp_path) == []


def put_stream_with_foreign_commit(folders: StreamFolders, origin: str) -> None:
    """Add a stream to the root whose table has a foreign commit."""
    shutil.copytree(folders.root / folders.stream, folders.root / "other")
    table = StreamFolders("other", folders.root).table
    named = Origin(stream=origin, table_id="t", batch=1, digest="", code="", code_digest="", at=0.0, cause="")
    shadow = Proposal(kind=commit_kinds.DESIRE, next_head=lambda base: msgspec.structs.replace(base.head, origin=named))
    OutputLog(table).commit(shadow)
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})


def test_a_foreign_commit_to_another_stream_is_noted(tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(1))
    put_stream_with_foreign_commit(folders, origin="readings")
    notes = prepare_erasure(folders, EraseRequest(session="s1"), CONTEXT).plan.notes
    (note,) = (each for each in notes if "no shadow" in each)
    assert note.startswith("a table that cannot be read is taken for no shadow of sensors: ")
    assert "not a commit of lockstep" in note
    assert erased(folders).plan.rows


def test_a_foreign_commit_to_a_shadow_of_the_stream_refuses(tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(1))
    put_stream_with_foreign_commit(folders, origin="sensors")
    with pytest.raises(ForeignCommit, match="other/table"):
        erased(folders)


def test_what_a_killed_deletion_of_a_shadow_left_goes_with_the_erasure(tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(1))
    dropped = folders.root / ".sensors_shadow.dropped"
    (dropped / "state").mkdir(parents=True)
    (dropped / "state" / "one.state").write_bytes(b"s1")
    erased(folders)
    assert not dropped.exists()


@pytest.fixture
def replaced(tmp_path: Path) -> StreamFolders:
    """Quarantine files that a compaction has replaced: one with s1, two with s2."""
    folders = write(tmp_path / "t", clean_batches(1))
    add_quarantine(folders, "s1", "s2")
    add_quarantine(folders, "s2")
    compact_side_tables(folders, msgspec.structs.replace(OutputLog(folders.table).base().head, hour="2099-01-01T00"))
    assert len(list_quarantine(folders)) == 4
    return folders


def list_quarantine(folders: StreamFolders) -> list[list[object]]:
    """Return the sorted sessions of each file in the folder."""
    found = (pq.read_table(path)["session"].to_pylist() for path in folders.quarantine.glob("*.parquet"))
    return sorted((sorted(sessions, key=repr) for sessions in found), key=repr)


def test_files_that_a_compaction_had_replaced_go_with_the_erasure(replaced: StreamFolders) -> None:
    assert erased(replaced).messages == 1
    assert list_quarantine(replaced) == [["s2", "s2", None], ["s2"], ["s2"]]


def test_housekeeping_deletes_them_where_it_finishes_an_erasure(
    replaced: StreamFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(erase, "redact_side_tables", _die)
        with pytest.raises(KeyboardInterrupt):
            erased(replaced)
    run_housekeeping(replaced, retention_seconds=3600.0)
    assert not any("s1" in sessions for sessions in list_quarantine(replaced))


def test_what_a_killed_batch_had_put_in_quarantine_goes_too_and_a_compaction_under_way_keeps_its_file(
    tmp_path: Path,
) -> None:
    folders = write(tmp_path / "t", clean_batches(1))
    add_quarantine(folders, "s1", "s2")
    head = OutputLog(folders.table).base().head
    one = next(
        path for path in folders.quarantine.glob("*.parquet") if "s1" in pq.read_table(path)["session"].to_pylist()
    )
    other = next(path for path in folders.quarantine.glob("*.parquet") if path != one)
    label = f"g{head.generation}-e{head.epoch}-b{head.batch + 1}"
    number = pa.array([head.batch + 1], pa.int64())
    whole, torn = (folders.quarantine / f"quarantine-{label}-{digit * 32}.parquet" for digit in "ab")
    rows = pq.read_table(one)
    pq.write_table(rows.set_column(rows.schema.get_field_index("batch"), "batch", number), whole)
    torn.write_bytes(one.read_bytes()[:100])
    under_way = folders.quarantine / f"compacted-2026-01-01T00-g1-b2-2-{'c' * 32}.parquet"
    shutil.copy(other, under_way)
    erased(folders)
    assert (one.exists(), whole.exists(), torn.exists()) == (False, False, False)
    assert (other.exists(), under_way.exists()) == (True, True)


def test_rows_that_timers_emitted_where_a_range_ends_count_for_their_batch() -> None:
    ranges = RangeEnds.of(np.array([[10, 0, 1], [20, 3, 3], [30, 0, 4], [20, 2, 2]], np.int64))
    rows = np.array([[5, 0, 5], [20, 1, 19], [20, 2, 19], [20, 3, 20], [25, 0, 25]], np.int64)
    places = rewriting.ErasedPlaces(*rows.T)
    found = [(each.start, each.batch, each.rows, each.messages) for each in count_erased("d", [places], ranges)]
    assert found == [(5, 1, 1, 1), (20, 2, 1, 1), (20, 3, 1, 1), (20, 4, 2, 2)]


def test_the_ranges_of_a_partition_are_held_as_three_numbers_each(tmp_path: Path) -> None:
    """Only batches that count, in order. A dictionary per row would take 600 bytes."""
    folders = write(tmp_path, clean_batches(3))
    head = OutputLog(folders.table).base().head
    key = TopicIdPartition(CLEAN[1].topic_id, CLEAN[1].partition)
    rows = [row for row in ledger.read_ledger(folders.ledger) if TopicIdPartition(row.topic_id, row.partition) == key]
    found = read_range_ends(folders, head, [key])
    assert found.keys() == {key}
    assert found[key].until.tolist() == [row.until for row in rows]
    assert found[key].batch.tolist() == [row.batch for row in rows] == [1, 2, 3]
    assert {found[key].until.itemsize, found[key].rows_emitted.itemsize, found[key].batch.itemsize} == {8}
    rewound = msgspec.structs.replace(head, batch=2)
    assert read_range_ends(folders, rewound, [key])[key].batch.tolist() == [1, 2]
    assert read_range_ends(folders, head, []) == {}
