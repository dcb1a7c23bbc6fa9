"""Every kind of commit keeps the rules of Delta's protocol, on the table and on the side tables, in any order."""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.compaction.erase import WantedSession, rewrite_without
from lockstep.compaction.ledger_files import compact_ledger
from lockstep.compaction.plan import LiveFiles
from lockstep.compaction.run import compact_stream, make_removal
from lockstep.compaction.side_files import compact_side_tables, redact_side_tables
from lockstep.model.commit_hour import compute_next_hour
from lockstep.operations.maintenance.retain import drop_old_rows
from lockstep.table import delta_log
from lockstep.table.commit import commit_closed_hour, commit_schema, raise_rewind_floor, set_desired_state
from lockstep.table.commit_kind import CommitKind, RowChange
from lockstep.table.erasure import ErasureCommit, commit_erasure, compute_session_digest, finish_erasure
from lockstep.table.head import Desired, Savepoint
from lockstep.table.parquet import DataFile
from lockstep.table.promotion import PromotionCommit, commit_promotion
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from lockstep.table.restore import commit_restored, write_mark
from lockstep.table.rewind import add_savepoint
from lockstep.table.schema_evolution import add_columns, mark_added
from lockstep.table.written_by import WrittenBy
from tests.support.delta_protocol import find_broken_rules
from tests.support.protocol_run import TOPIC, TOPIC_ID, ProtocolRun, folders_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.table.commit import Base, BatchCommit


FILES_KEPT = timedelta(hours=1)
STEPS = st.sampled_from(
    (
        *("batch", "batch", "quiet", "quarantined", "hour", "compact", "retain", "rewind", "rewind far", "promote"),
        *("erase", "close", "floor", "savepoint", "schema", "desire"),
    )
)


def accept(base: Base) -> None:
    """Any base."""
    del base


class Table:
    """A stream to which any kind of commit can be made."""

    def __init__(self, root: Path) -> None:
        self.run = ProtocolRun(folders_in(root / "stream"))
        self.run.claim()
        self.shadow = ProtocolRun(folders_in(root / "shadow", "shadow"))
        self.shadow.claim()
        self.shadow.batch()
        self.columns = 0

    @property
    def tables(self) -> tuple[Path, ...]:
        folders = self.run.folders
        return tuple(
            each for each in (folders.table, folders.ledger, folders.quarantine, folders.late) if each.exists()
        )

    def step(self, name: str) -> None:
        getattr(self, name.replace(" ", "_"))()

    def batch(self) -> None:
        self._write(self.run.prepared(hour=self._find_hour(), full=True))

    def quiet(self) -> None:
        self._write(self.run.prepared(rows=0, hour=self._find_hour()))

    def _write(self, batch: BatchCommit) -> None:
        self.run.forward(self.run.commit(batch).head)

    def quarantined(self) -> None:
        batch = self.run.prepared(hour=self._find_hour())
        row = QuarantineRow(
            generation=self.run.head.generation,
            batch=batch.number,
            topic_id=TOPIC_ID,
            topic=TOPIC,
            partition=0,
            offset=self.run.next_offset(),
            session="s",
            cause="gap",
            expected=None,
            found=None,
            timestamp=None,
            key=b"s",
            value=b"v",
            value_bytes=1,
            headers=[],
        )
        file = write_quarantine(self.run.folders.quarantine, [row])
        self._write(msgspec.structs.replace(batch, quarantine=(file,)))

    def hour(self) -> None:
        self.run.clock += timedelta(hours=1)
        self.batch()

    def compact(self) -> None:
        compact_stream(self.run.folders)
        compact_ledger(self.run.folders, self.run.head)
        compact_side_tables(self.run.folders, self.run.head)

    def retain(self) -> None:
        drop_old_rows(self.run.folders, FILES_KEPT, cause="a test")

    def rewind(self) -> None:
        self._rewind(self.run.head.batch - 1)

    def rewind_far(self) -> None:
        self._rewind(self.run.head.rewind_floor)

    def _rewind(self, batch: int) -> None:
        if delta_log.find_head_of_batch(self.run.folders.table, batch) is not None and batch > 0:
            self._look()
            self.run.rewind(batch, self._find_hour())
            self.run.claim()

    def _look(self) -> None:
        self.run.head = self.run.output.base().head

    def _find_hour(self) -> str:
        """The hour of an operation, by the clock of the run."""
        head = self.run.head
        hour = max(f"{self.run.clock:%Y-%m-%dT%H}", head.hour)
        return hour if hour > head.closed_hour else compute_next_hour(head.closed_hour)

    def promote(self) -> None:
        self._look()
        hour = self._find_hour()
        target = delta_log.find_head_of_batch(self.run.folders.table, max(self.run.head.batch - 1, 1))
        if target is None or not self.run.head.may_rewind_to(target.batch):
            return
        head, last = self.run.head, self.run.head.batch + 2
        after = msgspec.structs.replace(head, generation=head.generation + 1, batch=last - 1, epoch=head.epoch + 1)
        label = WrittenBy(after.generation, after.epoch, last).label
        planned = PromotionCommit(
            table=self.run.folders.table,
            seen=head,
            target=target,
            shadow=msgspec.structs.replace(self.shadow.head, batch=1),
            generation=after.generation,
            batch=last,
            commit_hour=hour,
            files=tuple(self._copy_shadow(label, hour)),
            fields=tuple(DeltaTable(self.run.folders.table).schema().fields),
            ledger=self.run.ledger_file(0, 0, after),
            quarantine=(),
            late=(),
            at=1.0,
            cause="a test",
            needs={},
        )
        landed = commit_restored(self.run.output, commit_promotion(planned), hour)
        self.run.head = landed.head
        self.run.forward(landed.head)
        self.run.claim()

    def _copy_shadow(self, label: str, hour: str) -> Sequence[DataFile]:
        table, found = self.shadow.folders.table, []
        for number, file in enumerate(delta_log.read_live_files(table, self.shadow.output.base().version).values()):
            path = f"commit_hour={hour}/promoted-{label}-{number:032x}.parquet"
            (self.run.folders.table / path).parent.mkdir(exist_ok=True)
            shutil.copy(table / file.path, self.run.folders.table / path)
            found.append(DataFile(path, file.size, file.rows, file.statistics, hour))
        return found

    def erase(self) -> None:
        self._look()
        head, table, hour = self.run.head, self.run.folders.table, self._find_hour()
        by = WrittenBy(head.generation, head.epoch + 1, head.batch + 1)
        live = [file for file in LiveFiles(table).at(0) if file.rows][:1]
        written = [rewrite_without(table, file, WantedSession("s"), by) for file in live]
        mark = write_mark(table, DeltaTable(table).schema(), hour, by)
        after = msgspec.structs.replace(head, epoch=head.epoch + 1)
        ledger = self.run.ledger_file(self.run.next_offset(), 0, after)
        digest = compute_session_digest(head.table_id, "s")
        planned = ErasureCommit(
            seen=head,
            digest=digest,
            topic="",
            commit_hour=hour,
            ledger=ledger,
            adds=(mark,) if written else (),
            removes=tuple(make_removal(each.source) for each in written),
            needs={},
            drops=tuple(each.name for each in head.savepoints),
            at=1.0,
            cause="a test",
        )
        landed = self.run.output.commit(commit_erasure(planned, accept)).head
        self.run.forward(landed)
        assert landed.erasure is not None
        redact_side_tables(self.run.folders, landed, landed.erasure)
        self.run.head = self.run.output.commit(finish_erasure(digest, landed.batch)).head

    def close(self) -> None:
        self.run.head = self.run.output.commit(commit_closed_hour(self.run.head.hour)).head

    def floor(self) -> None:
        head = self.run.output.base().head
        self.run.output.commit(raise_rewind_floor(head.generation, max(head.batch - 2, 0)))

    def savepoint(self) -> None:
        head = self.run.output.base().head
        if head.batch and len(head.savepoints) < 2:
            name = f"s{self.run.output.base().version}"
            self.run.output.commit(add_savepoint(Savepoint(name, head.batch, head.batch_version, 0.0, "a test")))

    def schema(self) -> None:
        self.columns += 1
        added = mark_added([Field(f"column_{self.columns}", PrimitiveType("double"))], self.run.head.batch)
        self._look()
        self.run.output.commit(commit_schema(self.run.writer, partial(add_columns, added)))

    def desire(self) -> None:
        self._look()
        self.run.output.commit(set_desired_state(self.run.writer, Desired.RUNNING, "a test"))


def read_actions(table: Path, version: int) -> tuple[str | None, list[dict[str, Any]]]:
    """The kind of an entry, and its actions."""
    entry = delta_log.read_entry(table, version)
    assert entry is not None
    lines = delta_log.make_entry_path(table, version).read_text().splitlines()
    return entry.kind, [json.loads(line) for line in lines]


def check_kinds(table: Path) -> None:
    """What a reader of each commit is told is what its kind does to rows."""
    for version in delta_log.list_versions(table):
        name, actions = read_actions(table, version)
        kind = CommitKind(name) if name is not None else CommitKind.CREATE
        files = [each.get("add") or each["remove"] for each in actions if each.keys() & {"add", "remove"}]
        assert {each["dataChange"] for each in files} <= {kind.changes_data}, (version, kind)
        adds, removes = (any(name in each for each in actions) for name in ("add", "remove"))
        if removes and kind.row_change is RowChange.REPLACED:
            assert adds, f"version {version}, {kind}: it looks like retention"
        if removes and kind.row_change is RowChange.DROPPED:
            assert not adds, (version, kind)


def check(made: Table) -> None:
    for table in made.tables:
        assert find_broken_rules(table) == [], table.name
        check_kinds(table)
        DeltaTable(table).to_pyarrow_table()


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def test_commits_of_all_kinds_in_any_order_keep_the_rules(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        made = Table(Path(root))
        for step in steps:
            made.step(step)
        check(made)


def test_each_kind_of_commit_with_files_is_made_and_keeps_the_rules(tmp_path: Path) -> None:
    """The steps above make all of them: none is left out by chance."""
    made = Table(tmp_path)
    steps = ["batch", "quarantined", "quarantined", "batch", "savepoint", "batch", "hour", "hour", "compact", "rewind"]
    steps += ["promote", "schema", "batch", "desire", "erase", "batch", "floor", "hour", "close", "hour", "retain"]
    for step in steps:
        made.step(step)
    check(made)
    kinds = {read_actions(table, at)[0] for table in made.tables for at in delta_log.list_versions(table)}
    with_files = {CommitKind.BATCH, CommitKind.COMPACTION, CommitKind.RETENTION, CommitKind.REWIND, CommitKind.PROMOTE}
    with_files |= {CommitKind.ERASE, CommitKind.SIDE, CommitKind.SIDE_COMPACTION, CommitKind.SIDE_REDACTION}
    assert {each.value for each in with_files} <= kinds


def test_no_table_is_append_only(tmp_path: Path) -> None:
    """Retention, erasure, rewind and promotion remove data, which the property forbids to every writer."""
    for table in Table(tmp_path).tables:
        assert "delta.appendOnly" not in DeltaTable(table).metadata().configuration


def test_a_rewind_over_a_retention_is_no_append(tmp_path: Path) -> None:
    """Its files come back and none goes: a reader that has read their rows would read them again."""
    made = Table(tmp_path)
    for step in ("batch", "hour", "hour"):
        made.step(step)
    made.run.clock += timedelta(hours=5)
    made.quiet()
    before = made.run.head.batch
    drop_old_rows(made.run.folders, timedelta(hours=2), cause="a test")
    assert delta_log.read_live_files(made.run.folders.table, made.run.output.base().version) == {}
    made.quiet()
    made.run.rewind(before)
    assert len(DeltaTable(made.run.folders.table).to_pyarrow_table()) == 6
    check(made)
    _, actions = read_actions(made.run.folders.table, made.run.output.base().version)
    assert {"add", "remove"} <= {name for each in actions for name in each}


def test_a_rewind_to_no_rows_is_no_deletion(tmp_path: Path) -> None:
    """What is removed only looks like retention, and a reader with `ignoreDeletes` passes over it silently."""
    made = Table(tmp_path)
    made.quiet()
    made.batch()
    made.run.rewind(1)
    assert len(DeltaTable(made.run.folders.table).to_pyarrow_table()) == 0
    check(made)
    made.run.claim()
    made.batch()
    made.run.rewind(made.run.head.batch - 1)  # which has a mark
    assert len(delta_log.read_live_files(made.run.folders.table, made.run.output.base().version)) == 2
    made.run.claim()
    for step in ("hour", "hour", "compact"):
        made.step(step)
    check(made)
