"""A stream that accepts any kind of commit from the library's code, without Kafka and Spark."""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.features.compaction.run import CompactionRefused, compact_stream
from lockstep.features.compaction.side_files import compact_side_tables
from lockstep.features.erase.commit import ErasureCommit, commit_erasure, finish_erasure
from lockstep.features.erase.rows import WantedSession, rewrite_without
from lockstep.features.erase.side_redaction import redact_side_tables
from lockstep.features.history.promotion_commit import PromotionCommit, commit_promotion
from lockstep.features.history.rewind_commit import add_savepoint
from lockstep.features.retention.messages import drop_old_messages
from lockstep.features.retention.rows import drop_old_rows
from lockstep.model.commit_hour import compute_next_hour
from lockstep.table import delta_log
from lockstep.table.commit import commit_closed_hour, commit_schema, raise_rewind_floor, set_desired_state
from lockstep.table.head import Desired, Savepoint
from lockstep.table.live_files import LiveFiles, make_removal
from lockstep.table.parquet import DataFile
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from lockstep.table.restore import commit_restored, write_mark
from lockstep.table.schema_evolution import add_columns, mark_added
from lockstep.table.session_digest import compute_session_digest
from lockstep.table.written_by import WrittenBy
from tests.support.protocol_run import TOPIC, TOPIC_ID, ProtocolRun, folders_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.table.commit import Base, BatchCommit


FILES_KEPT = timedelta(hours=1)


def accept(base: Base) -> None:
    """Accept any base."""
    del base


class EveryCommit:
    """A stream that accepts any kind of commit."""

    def __init__(self, root: Path) -> None:
        self.run = ProtocolRun(folders_in(root / "stream"))
        self.run.claim()
        self.shadow = ProtocolRun(folders_in(root / "shadow", "shadow"))
        self.shadow.claim()
        self.shadow.batch()
        self.columns = 0

    @classmethod
    def copy(cls, original: Path, root: Path) -> EveryCommit:
        """Continue in a copy of the folder."""
        shutil.copytree(original, root, dirs_exist_ok=True)
        return cls(root)

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
        with suppress(CompactionRefused):  # a promotion here copies rows with offsets that the stream has, too
            compact_stream(self.run.folders)
        compact_ledger(self.run.folders, self.run.head)
        compact_side_tables(self.run.folders, self.run.head)

    def retain(self) -> None:
        drop_old_rows(self.run.folders, FILES_KEPT, cause="a test")

    def drop_messages(self) -> None:
        drop_old_messages(self.run.folders, FILES_KEPT, cause="a test")

    def rewind(self) -> None:
        self._rewind(self.run.head.batch - 1)

    def rewind_far(self) -> None:
        self._rewind(self.run.head.rewind_floor)

    def _rewind(self, batch: int) -> None:
        self._look()
        is_kept = delta_log.find_head_of_batch(self.run.folders.table, batch) is not None
        if is_kept and batch > 0 and self.run.head.may_rewind_to(batch):
            self.run.rewind(batch, self._find_hour())
            self.run.claim()

    def _look(self) -> None:
        self.run.head = self.run.output.base().head

    def _find_hour(self) -> str:
        """Return the hour of an operation by the clock of the run."""
        head = self.run.head
        hour = max(f"{self.run.clock:%Y-%m-%dT%H}", head.hour)
        return hour if hour > head.closed_hour else compute_next_hour(head.closed_hour)

    def promote(self) -> None:
        self._look()
        hour = self._find_hour()
        target = delta_log.find_head_of_batch(self.run.folders.table, max(self.run.head.batch - 1, 1))
        if target is None or not self.run.head.may_rewind_to(target.batch):
            return
        head = self.run.head
        last = self.run.head.batch + 2
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
        table = self.shadow.folders.table
        found = []
        for number, file in enumerate(delta_log.read_live_files(table, self.shadow.output.base().version).values()):
            path = f"commit_hour={hour}/promoted-{label}-{number:032x}.parquet"
            (self.run.folders.table / path).parent.mkdir(exist_ok=True)
            shutil.copy(table / file.path, self.run.folders.table / path)
            found.append(DataFile(path, file.size, file.rows, file.statistics, hour))
        return found

    def erase(self) -> None:
        self._look()
        head = self.run.head
        table = self.run.folders.table
        hour = self._find_hour()
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
