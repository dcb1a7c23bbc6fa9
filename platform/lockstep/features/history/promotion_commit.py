"""The commit that makes a shadow the stream (docs/decisions/0028)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from lockstep.features.history.commit_kinds import PROMOTE
from lockstep.features.history.rewind_commit import check_unchanged, make_lineage, make_stopped
from lockstep.model.table_schema import ABSENT_UP_TO
from lockstep.table import delta_log
from lockstep.table.commit import Base, Proposal, check_hour_open
from lockstep.table.delta_log import CAUSE
from lockstep.table.head import (
    FIRST_BATCH,
    FoldCode,
    Head,
    PolicyChange,
    Promotion,
    Rewind,
    SideBatch,
    SideFile,
)
from lockstep.table.losses import add_shadow_losses, rewind_losses
from lockstep.table.parquet import DataFile
from lockstep.table.restore import Restoration, find_restored
from lockstep.table.schema_evolution import SchemaChange, find_schema_changes
from lockstep.table.written_by import WrittenBy


class PromotionCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A promotion to commit.

    Attributes:
        table: Folder of the output table.
        seen: The head of the stream for which it was planned.
        target: The head right after the batch from which the shadow started.
        shadow: The head of the shadow.
        generation: The new generation.
        batch: Its last batch.
        commit_hour: The hour of all of its rows.
        files: The copied data files, already synced.
        fields: The columns of the shadow's table.
        ledger: The ledger file of all of its batches, already synced.
        quarantine: Quarantine files, likewise.
        late: Files of the late table, likewise.
        at: Its time, in seconds since 1970 (UTC).
        cause: The reason and the operator.
        needs: Files that it brings back or refers to, with the least size of each.
    """

    table: Path
    seen: Head
    target: Head
    shadow: Head
    generation: int
    batch: int
    commit_hour: str
    files: tuple[DataFile, ...]
    fields: tuple[Field, ...]
    ledger: SideFile
    quarantine: tuple[SideFile, ...]
    late: tuple[SideFile, ...]
    at: float
    cause: str
    needs: Mapping[Path, int]

    @property
    def promotion(self) -> Promotion:
        """The promotion as the head records it."""
        first = self.seen.batch + FIRST_BATCH
        return Promotion(shadow=self.shadow.stream, to_batch=self.target.batch, first=first, batch=self.batch)


def commit_promotion(planned: PromotionCommit) -> Proposal:
    """Go back to the batch from which a shadow started, and add the shadow's rows: one commit; the stream is stopped.

    The commit raises:
        Fenced: Another run, a rewind or another promotion claimed the table since it was planned.
        NotRewindable: A batch was committed since, or the files of the target may be deleted by now.
        HourClosed: The hour was closed since.
    """

    def next_head(base: Base) -> Head:
        check_unchanged(base.head, planned.seen, planned.target)
        check_hour_open(base.head, planned.commit_hour)
        return _make_promoted(base, planned)

    restoration = Restoration(
        table=planned.table,
        version=planned.target.files_version,
        commit_hour=planned.commit_hour,
        written_by=WrittenBy(planned.generation, planned.seen.epoch + 1, planned.batch),
        adds_more=bool(planned.files),
        fields=_find_fields(planned),
    )
    return Proposal(
        kind=PROMOTE,
        next_head=next_head,
        batch=planned.batch,
        epoch=planned.seen.epoch + 1,
        metadata={CAUSE: f"{planned.shadow.stream}, from batch {planned.target.batch} on: {planned.cause}"},
        adds=planned.files,
        restore=partial(find_restored, restoration),
        needs=planned.needs,
    )


def _make_promoted(base: Base, planned: PromotionCommit) -> Head:
    head = base.head
    target = planned.target
    version = base.version + 1
    return msgspec.structs.replace(
        make_stopped(head, f"shadow {planned.shadow.stream} promoted: {planned.cause}"),
        generation=planned.generation,
        lineage=make_lineage(target),
        epoch=head.epoch + 1,
        batch=planned.batch,
        batch_version=version,
        hour=planned.commit_hour,
        desired_version=version,
        findings=(),
        halted_topics=(),  # their violations are found again
        ledger=planned.ledger,
        quarantine=_add_side(head.quarantine, planned.quarantine, planned.batch),
        late=_add_side(head.late, planned.late, planned.batch),
        full_ledger_batch=planned.batch,
        full_ledger_at=planned.at,
        accepts_burst=planned.shadow.accepts_burst,
        last_resumption=target.last_resumption,
        retention=target.retention,
        rewinds=(*head.rewinds, Rewind(planned.batch, version, target.batch, head.batch, planned.cause)),
        promotion=planned.promotion,
        lost=add_shadow_losses(rewind_losses(head.lost, target.lost), planned.shadow.lost, head.batch),
        code=_take_over_code(head, planned.shadow),
        policies=tuple(_join_policies(head, planned.shadow)),
    )


def _take_over_code(head: Head, shadow: Head) -> FoldCode | None:
    """The code of the newest rows, with its first batch as one of the stream."""
    code = shadow.code
    if code is None or (head.code is not None and head.code.digest == code.digest):
        return head.code
    return FoldCode(code.digest, head.batch + code.first_batch)


def _join_policies(head: Head, shadow: Head) -> Iterator[PolicyChange]:
    """Those of the stream, then those under which the shadow has read, by the batches that they have in the stream."""
    last = None
    for before, source in ((0, head), (head.batch, shadow)):
        for each in source.policies:
            if each.first_batch <= source.batch and (each.policy, each.integrity) != last:
                yield msgspec.structs.replace(each, first_batch=before + each.first_batch)
                last = (each.policy, each.integrity)


def _add_side(before: SideBatch | None, files: tuple[SideFile, ...], batch: int) -> SideBatch | None:
    return SideBatch(batch, 0 if before is None else before.batch, files) if files else before


def _find_fields(planned: PromotionCommit) -> list[Field]:
    """The columns of the target and of the shadow; rows before the promotion show null in those that it lacks."""
    table = delta_log.open_delta_table(planned.table, version=planned.target.files_version)
    promoted = find_promoted_columns(table, planned.fields)
    first = planned.promotion.first
    marks = {each.name: each.metadata.get(ABSENT_UP_TO) for each in planned.fields}
    fields_of_rows = [
        Field(each.name, each.type, nullable=each.nullable or each.name in promoted.loosened, metadata=each.metadata)
        for each in table.schema().fields
    ]
    added = [
        Field(each.name, each.type, nullable=True, metadata={ABSENT_UP_TO: _renumber(marks[each.name], first)})
        for each in promoted.added
    ]
    return fields_of_rows + added


def find_promoted_columns(table: DeltaTable, fields: Sequence[Field]) -> SchemaChange:
    """The columns that a shadow adds to those of the rows that stay.

    Raises:
        TableError: A column of these rows is of another type in the shadow, or missing there.
    """
    wanted = pa.schema(cast("pa.Schema", Schema(list(fields)).to_arrow()))
    return find_schema_changes(table, wanted, defaulted=frozenset(wanted.names))


def _renumber(mark: object, first: int) -> int:
    """The last batch without a column, as a batch of the stream: those of the shadow follow in their order."""
    return first if mark is None else first - FIRST_BATCH + int(str(mark))
