"""Removes the name of an erased session from the ledger, and counts the rows that have it.

A mark with the digest replaces the name in decisions that the proof reads again. An error of the stream's own code
may show any value: of the partitions of the session all errors are removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lockstep.features.erase.commit import ErasedName
from lockstep.features.erase.commit_kinds import SIDE_REDACTION
from lockstep.model.position import TopicIdPartition
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.file_checksum import iterate_verified_rows
from lockstep.table.foreign_commits import refresh
from lockstep.table.head import Erasure, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerFileName
from lockstep.table.live_files import COMPACTED_PREFIX
from lockstep.table.parquet import UNREADABLE, DataFile
from lockstep.table.quarantine import ERASED
from lockstep.table.side_files import LedgerFile, commit_replacement, list_live_files, with_columns, write_proven

_PLACE: Final = ("batch", "topic", "topic_id", "partition")
NAMING: Final = ("accepted", "suspended_sessions", "uncounted_skips")
"""Columns with names of sessions."""
_ERRORS: Final = "losses"
_REASON: Final = "restart_cause"
REDACTED: Final = frozenset({*NAMING, _ERRORS, _REASON})
"""Columns out of which the session is taken."""


class _Erased(msgspec.Struct, frozen=True):
    """The erased session.

    Attributes:
        name: The name of the session.
        erasure: The erasure: rows of later batches, and of other topics, stay.
        places: Partitions in which the session was, by (topic id, partition).
        batches: Batches of decisions about it: each row of such a batch repeats the operator's reason.
    """

    name: ErasedName
    erasure: Erasure
    places: AbstractSet[TopicIdPartition] = frozenset()
    batches: AbstractSet[int] = frozenset()

    def find(self, rows: pa.Table) -> list[int]:
        """The rows that name the session, or show an error of a partition in which it was."""
        chosen = _find_filled(rows, self.batches)
        if not chosen:
            return []
        filled = rows.take(pa.array(chosen, pa.int64())).to_pylist()
        return [number for number, row in zip(chosen, filled, strict=True) if self._concerns(row)]

    def _concerns(self, row: dict[str, Any]) -> bool:
        if row["batch"] >= self.erasure.batch or self.erasure.topic not in {"", row["topic"]}:
            return False
        accepted, suspended, uncounted = (row.get(name) or () for name in NAMING)
        sessions = [decision["session"] for decision in (*accepted, *suspended)]
        if row["batch"] in self.batches or any(map(self.name.match, [*sessions, *uncounted])):
            return True
        has_error = any(loss["detail"] not in {"", ERASED} for loss in row.get(_ERRORS) or ())
        return has_error and (row["topic_id"], row["partition"]) in self.places

    def redact(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row without the session."""
        skipped = row["suspended_sessions"] or ()
        changed: dict[str, Any] = {
            "accepted": [self._redact_decision(decision) for decision in row["accepted"] or ()],
            "suspended_sessions": [suspended | {"session": self._hide(suspended["session"])} for suspended in skipped],
            "losses": row[_ERRORS] or [],
            "uncounted_skips": [self._hide(session) for session in row["uncounted_skips"] or ()],
        }
        if (row["topic_id"], row["partition"]) in self.places:
            changed["losses"] = list(map(_redact_loss, changed["losses"]))
        # The operator's reason is free text, and may name the session.
        if row["batch"] in self.batches:
            changed[_REASON] = ERASED
        return changed

    def _redact_decision(self, decision: dict[str, Any]) -> dict[str, Any]:
        if self.name.match(decision["session"]):
            return decision | {"session": None, "why": ERASED}
        return decision

    def find_batches(self, rows: pa.Table) -> set[int]:
        """The batches of decisions about the session."""
        listed = rows.select(["batch", "accepted"]).take(pa.array(self.find(rows), pa.int64())).to_pylist()
        return {row["batch"] for row in listed if self._has_decision(row)}

    def _has_decision(self, row: dict[str, Any]) -> bool:
        return any(self.name.match(decision["session"]) for decision in row["accepted"] or ())

    def _hide(self, session: str) -> str:
        return self.name.mark if self.name.match(session) else session


def _redact_loss(loss: dict[str, Any]) -> dict[str, Any]:
    return loss | {"detail": ERASED} if loss["detail"] else loss


def _find_filled(rows: pa.Table, batches: AbstractSet[int]) -> list[int]:
    """The rows with any decision or loss, or of some batches, in order: they are few."""
    filled = np.isin(rows["batch"].to_numpy(), list(batches))
    for column in (*NAMING, _ERRORS):
        if column in rows.column_names:
            lengths: Any = pc.fill_null(pc.list_value_length(rows[column]), 0)
            filled |= lengths.to_numpy() > 0
    return np.flatnonzero(filled).tolist()


def count_named(folders: StreamFolders, table_id: str, digest: str, topic: str) -> dict[TopicIdPartition, int]:
    """The ledger rows that name a session, by partition. Reads the whole ledger, a row group at a time."""
    # Before every batch that will ever be: the erasure is only planned.
    erasure = Erasure(digest=digest, topic=topic, batch=2**62, version=0, at=0.0, cause="")
    wanted = _Erased(ErasedName(table_id, digest), erasure)
    counts = Counter[TopicIdPartition]()
    for rows in ledger.iterate_columns(folders.ledger, [*_PLACE, *NAMING]):
        for number in wanted.find(rows):
            key = TopicIdPartition(str(rows["topic_id"][number]), int(rows["partition"][number].as_py()))
            counts[key] += 1
    return counts


def redact_ledger(folders: StreamFolders, head: Head, erasure: Erasure) -> int:
    """Take an erased session out of the ledger; returns the number of rewritten files.

    1. Bring the ledger forward to the head, which has the row of the erasure.
    2. Rewrite each file of an earlier batch that names the session; read the new file again.
    3. Commit; a file that another process has replaced meanwhile is read again.
    4. Delete the replaced files, and those with the session that the ledger does not name.

    No position is read from these files any more: the erasure has a full set of them. Safe to call again.

    Raises:
        TableError: A file is damaged, or the ledger does not match its head.
        CommitUnknown: The store did not answer.
    """
    side_tables.catch_up_alongside_writer(folders, head)  # 1
    side = folders.ledger
    handle = delta_log.open_delta_table(folders.ledger)
    erased = _Erased(ErasedName(head.table_id, erasure.digest), erasure, _read_places(side, erasure))
    count = 0
    is_done = False
    while not is_done:
        refresh(handle, side)
        earlier = [file for file in list_live_files(handle) if file.name.first < erasure.batch]
        due = [file for file in earlier if _names(side, file, erased)]
        count += sum(_replace(side, handle, file, erased) for file in due)  # 2, 3
        # A compaction may have moved the session into another file meanwhile.
        is_done = not due
    _delete_unnamed(side, handle, erased)  # 4
    return count


def _read_places(side: Path, erasure: Erasure) -> frozenset[TopicIdPartition]:
    """The partitions in which the session was, by the ledger rows of its erasure."""
    rows = ledger.read_ledger(side, first_batch=erasure.batch, last_batch=erasure.batch)
    concerned = set[TopicIdPartition]()
    for row in rows:
        if any(erased.digest == erasure.digest for erased in row.erased):
            concerned.add(row.key)
    return frozenset(concerned)


def _names(side: Path, file: LedgerFile, erased: _Erased) -> bool:
    columns = [*_PLACE, *NAMING, _ERRORS]
    return any(erased.find(rows) for rows in _iterate(side / file.path, columns))


def _iterate(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a file, a row group at a time; columns that it lacks are left out."""
    for rows in iterate_verified_rows(path, path.parent.parent.name):
        if columns is None:
            yield rows
        else:
            yield rows.select([name for name in columns if name in rows.column_names])


def _replace(side: Path, handle: DeltaTable, file: LedgerFile, erased: _Erased) -> bool:
    """Replace a file by one without the session; False if another process has replaced it before."""
    schema = pa.schema(cast("pa.Schema", handle.schema().to_arrow()))
    batches = set[int]()
    # All row groups first: each row of such a batch repeats the reason, also in groups before the decision.
    for rows in _iterate(side / file.path):
        batches |= erased.find_batches(rows)
    erased = msgspec.structs.replace(erased, batches=batches)
    groups = (_redact(with_columns(rows, schema), erased) for rows in _iterate(side / file.path))
    output = write_proven(side, schema, file.name.prefix(COMPACTED_PREFIX), groups)
    # The replaced file has the session; a file that lost has no reader.
    is_ours = _commit(side, handle, file, output)
    find_storage(side).delete(side / (file.path if is_ours else output.path))
    return is_ours


def _commit(side: Path, handle: DeltaTable, file: LedgerFile, output: DataFile) -> bool:
    inputs = {file.path: file.size}
    return commit_replacement(side, handle, file.name.hour, inputs, output, SIDE_REDACTION)


def _redact(rows: pa.Table, erased: _Erased) -> pa.Table:
    chosen = set(erased.find(rows))
    if not chosen:
        return rows
    columns = sorted(REDACTED)
    listed = rows.select([*columns, *_PLACE]).to_pylist()
    for number in chosen:
        listed[number] |= erased.redact(listed[number])
    for name in columns:
        index = rows.schema.get_field_index(name)
        field = rows.schema.field(index)
        rows = rows.set_column(index, field, pa.array([row[name] for row in listed], field.type))
    return rows


def _delete_unnamed(side: Path, handle: DeltaTable, erased: _Erased) -> None:
    """Delete the files with the session that the ledger does not name: replaced ones, and those of killed batches."""
    storage = find_storage(side)
    paths = storage.find_files(side, "*.parquet")
    refresh(handle, side)  # after the list, so that files committed meanwhile count as named
    named = set(_list_paths(handle))
    # A batch that the erasure overtook has its number.
    until = msgspec.structs.replace(erased.erasure, batch=erased.erasure.batch + 1)
    for path in paths:
        if path.name not in named and _may_name(path, msgspec.structs.replace(erased, erasure=until)):
            storage.delete(path)


def _list_paths(handle: DeltaTable) -> Iterable[str]:
    return map(str, pa.table(handle.get_add_actions())["path"].to_pylist())


def _may_name(path: Path, erased: _Erased) -> bool:
    """Whether a file names the session, or is torn and of a batch before the erasure."""
    try:
        with pq.ParquetFile(find_storage(path).open_source(path)) as parquet:
            return any(erased.find(parquet.read_row_group(group)) for group in range(parquet.num_row_groups))
    except FileNotFoundError:
        return False
    except UNREADABLE:
        name = LedgerFileName.parse(path.name)
        return name is not None and name.first < erased.erasure.batch
