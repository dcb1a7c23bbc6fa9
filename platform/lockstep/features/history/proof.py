"""The state and positions that the first batch of a shadow or an imported savepoint inherited, against its digest.

Those of a shadow are also compared with the shadowed stream, in the same table root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from lockstep.errors import StateError, TableError
from lockstep.model.position import SegmentRef, TopicIdPartition
from lockstep.state.changelog import StateVersion, read_header, read_segment
from lockstep.table import delta_log, transactions
from lockstep.table.head import FIRST_BATCH, Head, Imported, Origin
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_positions_at
from lockstep.verify.ledger import LedgerRange, Skipped, to_microseconds
from lockstep.verify.report import ViolationKind, Violations
from lockstep.verify.stored_tables import StoredTables


def check_origin(folders: StreamFolders, stored: StoredTables, violations: Violations) -> None:
    """Compare the state and the positions that a first batch inherited with the digest of the head.

    1. From the stream's own tables, while they contain the state of that batch.
    2. Of a shadow: from those of the stream that it is a shadow of, while they do.
    """
    origin = stored.head.taken_over
    if origin is None:
        return
    first = {key: ranges[0] for key, ranges in stored.ledger.items() if ranges[0].batch == FIRST_BATCH}
    if stored.head.rewind_floor > FIRST_BATCH:  # 1
        stored.notes.append(
            f"the state of batch {origin.batch} of {origin.stream}, with which it started, is not kept any more"
        )
    else:
        own = {key: row.segment for key, row in first.items()}
        _compare(folders, origin, first.values(), own, violations)
    if isinstance(origin, Imported):
        where = f"rows before it are in the table with id {origin.table_id}"
        stored.notes.append(f"it started with savepoint {origin.savepoint}, batch {origin.batch}, imported: {where}")
        return
    source = StreamFolders(origin.stream, folders.root)  # 2
    source_rows = _read_source(source, origin)
    if source_rows is None:
        stored.notes.append(
            f"{origin.stream} does not keep batch {origin.batch}, from which the shadow started, any more"
        )
        return
    theirs = {key: row for key, row in source_rows.items() if key in first}
    rows = [_with_position(row, theirs.get(key)) for key, row in first.items()]
    _compare(source, origin, rows, {key: _section(row) for key, row in theirs.items()}, violations)
    for key in source_rows.keys() - first.keys():
        missing = f"nothing of {source_rows[key].topic}/{source_rows[key].partition}"
        violations.add(ViolationKind.ORIGIN_DIFFERS, None, None, f"all positions of batch {origin.batch}", missing)


def _read_source(source: StreamFolders, origin: Origin) -> Mapping[TopicIdPartition, LedgerRow] | None:
    """The positions of the batch in its own table; None if that is another table, or has cleaned the batch up."""
    if not delta_log.has_log(source.table):
        return None
    try:
        handle = delta_log.open_delta_table(source.table)
        entry = delta_log.read_entry(source.table, handle.transaction_version(transactions.VERSION) or 0)
        head = entry.head if entry is not None else None
        if head is None or head.table_id != origin.table_id or not head.may_rewind_to(origin.batch):
            return None
        return _read_positions(source, head, origin.batch)
    except TableError:
        return None


def _read_positions(source: StreamFolders, now: Head, batch: int) -> Mapping[TopicIdPartition, LedgerRow]:
    """The positions of a batch, from the newest full set at it on; from the first batch, if its entry is gone."""
    entry = None
    # The version of a savepoint stays readable when the entries around it are deleted.
    version = next((savepoint.version for savepoint in now.savepoints if savepoint.batch == batch), None)
    if version is not None:
        entry = delta_log.read_entry(source.table, version)
    head = delta_log.find_head_of_batch(source.table, batch) if entry is None else entry.head
    full_batch = 0 if head is None else head.full_ledger_batch
    return read_positions_at(source, batch, full_batch=full_batch)


def _section(row: LedgerRow) -> SegmentRef | None:
    if row.state_file is None or row.state_start is None or row.state_length is None:
        return None
    return SegmentRef(file=row.state_file, start=row.state_start, length=row.state_length)


def _with_position(row: LedgerRange, theirs: LedgerRow | None) -> LedgerRange:
    """The shadow's row with the stream's values of the same partition; a topic added later has no state there."""
    if theirs is None:
        return row
    return msgspec.structs.replace(
        row,
        generation=theirs.generation,
        until=theirs.until,
        watermark=theirs.watermark,
        rows_emitted=theirs.rows_emitted,
        suspended_from=theirs.suspended_from,
        suspended_sessions=[Skipped(skip.session, skip.before) for skip in theirs.suspended_sessions],
        catching_up=theirs.catching_up,
        joined_at=theirs.joined_at,
    )


def _compare(
    folders: StreamFolders,
    origin: Origin | Imported,
    rows: Iterable[LedgerRange],
    segments: Mapping[TopicIdPartition, SegmentRef | None],
    violations: Violations,
) -> None:
    expected = f"digest {origin.digest} of batch {origin.batch} of {origin.stream}"
    try:
        digest = _digest(folders.state, rows, segments)
    except StateError as error:
        # State that cannot be read is a violation as well.
        digest = error.problem
    if digest != origin.digest:
        violations.add(ViolationKind.ORIGIN_DIFFERS, None, None, expected, f"{digest} in {folders.stream}")


def _digest(state: Path, rows: Iterable[LedgerRange], segments: Mapping[TopicIdPartition, SegmentRef | None]) -> str:
    digest = hashlib.sha256()
    for row in sorted(rows, key=lambda row: (row.topic_id, row.partition)):
        skipped = [[skip.session, skip.before] for skip in row.suspended_sessions]
        parts = (row.topic_id, row.partition, row.until, to_microseconds(row.watermark), row.rows_emitted)
        digest.update(msgspec.json.encode([*parts, row.suspended_from, skipped, row.catching_up, row.joined_at]))
        last = segments.get(TopicIdPartition(row.topic_id, row.partition))
        if last is None:
            continue
        version = StateVersion(row.generation, row.topic_id, row.partition, row.until, last)
        # The content, not the files: a copy has the state in other segments.
        for ref in (*read_header(state, last).chain, last):
            digest.update(read_segment(state, ref, version).body)
    return digest.hexdigest()
