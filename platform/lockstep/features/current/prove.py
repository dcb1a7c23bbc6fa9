"""The part of `lockstep verify` about a current table: its rows are compared with the states by other code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.declare.stream import AnyStream
from lockstep.features.current.refresh import KIND, judge_current, read_current_version
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import make_file_schema
from lockstep.operations.stream_table import open_table
from lockstep.settings import KafkaSettings
from lockstep.table import delta_log, ledger
from lockstep.table.commit import Base
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.verify.current_rows import StateRows, find_differences, find_key_rows, make_replay_schema
from lockstep.verify.declaration import find_state_declaration
from lockstep.verify.ledger import LedgerRange
from lockstep.verify.report import FollowerProof, InvariantStatus, Violations
from lockstep.verify.state import RewindFloor, StoredState, show_short


def prove_current(stream: AnyStream, folders: StreamFolders, kafka: KafkaSettings) -> Iterator[FollowerProof]:
    """Compare the current table of a stream with the states after its batch."""
    del kafka
    if stream.current:
        yield _prove(stream, folders)


def _prove(stream: AnyStream, folders: StreamFolders) -> FollowerProof:
    now = open_table(folders).base()
    current = read_current_version(folders)
    base = current.base
    if base is None:
        return _make_proof(stream, InvariantStatus.NOT_CLAIMED, "no rows", "it was never refreshed")
    cause = judge_current(stream, folders, current, now)
    claim = f"{base.rows} rows as after batch {base.history.batch}"
    if cause is not None:
        return _make_proof(stream, InvariantStatus.NOT_PROVEN, claim, cause.value)
    then = _find_head(folders, now, base.history.batch)
    if then is None:
        return _make_proof(stream, InvariantStatus.NOT_PROVEN, claim, "the states after that batch are no longer kept")
    opened = delta_log.open_delta_table(folders.current, version=current.version)
    rows = pa.table(opened.to_pyarrow_table())
    comparison = _Comparison(stream, folders, then)
    difference = comparison.compare(rows)
    if not difference and rows.num_rows != base.rows:
        difference = f"it has {rows.num_rows} rows"
    status = InvariantStatus.VIOLATED if difference else InvariantStatus.PROVEN
    return _make_proof(stream, status, claim, difference)


def _find_head(folders: StreamFolders, now: Base, batch: int) -> Head | None:
    """The head after a batch whose states are kept; None for any other."""
    if batch == now.head.batch:
        return now.head
    if not now.head.may_rewind_to(batch):
        return None
    return delta_log.find_head_of_batch(folders.table, batch)


class _Comparison:
    """The comparison of a table with the states after a batch."""

    def __init__(self, stream: AnyStream, folders: StreamFolders, head: Head) -> None:
        self._declared = find_state_declaration(stream)
        if self._declared.replay_key is None:
            raise AssertionError(f"the rows of {stream.name} do not replay to its states")
        self._key = self._declared.replay_key
        self._schema = make_replay_schema(self._key, make_file_schema(self._declared.row_type))
        self._folders = folders
        self._head = head

    def compare(self, rows: pa.Table) -> str:
        """Describe the first difference; empty without any."""
        unmatched = rows.num_rows
        for place, row in ledger.read_positions(self._folders, self._head).items():
            of_place = _select(rows, place)
            unmatched -= of_place.num_rows
            difference = self._compare_partition(row, _conform(of_place, self._schema))
            if difference:
                return f"topic {row.topic}, partition {row.partition}: {difference}"
        if unmatched:
            return f"{unmatched} rows of partitions without a state"
        return ""

    def _compare_partition(self, row: LedgerRow, rows: pa.Table) -> str:
        distinct = len(find_key_rows(rows, self._key)[0])
        if distinct != rows.num_rows:
            return f"{rows.num_rows} rows of {distinct} keys"
        difference = next(find_differences(self._key, rows, self._read_states(row)), None)
        if difference is None:
            return ""
        key = f"session {difference.session!r}, key {show_short(difference.key)}"
        if difference.column is not None:
            values = f"{show_short(difference.found)}, and {show_short(difference.expected)} in the state"
            return f"{key}: {difference.column} is {values}"
        if difference.position is None:
            return f"{key}: no row"
        return f"{key}: a row, and none in the state"

    def _read_states(self, row: LedgerRow) -> pa.Table:
        violations = Violations()
        floor = RewindFloor(self._folders.table, self._head)
        stored = StoredState(self._folders.state, self._declared, violations, self._head, floor)
        made = StateRows(self._key, self._schema)
        facts = {name: value for name, value in msgspec.structs.asdict(row).items() if value is not None}
        for session, state in stored.read_states(msgspec.convert(facts, LedgerRange, from_attributes=True)):
            if state is not None:
                made.add(session, self._declared.list_rows(state))
        return made.finish()


def _select(rows: pa.Table, place: TopicIdPartition) -> pa.Table:
    return rows.filter((pc.field("_topic_id") == place.topic_id) & (pc.field("_partition") == place.partition))


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the columns of the prover; with a place in the order, as rows of the table have."""
    defaults: Mapping[str, object] = {"_emit_offset": 0, "_row": 0}
    arrays: list[Any] = []
    for field in schema:
        if field.name in rows.column_names:
            arrays.append(rows[field.name].cast(field.type))
        else:
            arrays.append(pa.array([defaults.get(field.name)] * rows.num_rows, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _make_proof(stream: AnyStream, status: InvariantStatus, claim: str, reason: str) -> FollowerProof:
    step = f"lockstep current {stream.name}"
    steps = {InvariantStatus.PROVEN: "", InvariantStatus.VIOLATED: f"{step} --remake"}
    return FollowerProof(
        kind=KIND, name=stream.name, status=status, claim=claim, reason=reason, next_step=steps.get(status, step)
    )
