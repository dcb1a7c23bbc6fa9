"""The ledger: one row per topic-partition and batch. An ordinary table: lag, audits and proofs are SQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lockstep.integrity.finding import Hole
from lockstep.integrity.suspending import SuspendedSession
from lockstep.table.files import write_file
from lockstep.table.growth import without_nulls
from lockstep.table.head import Head, SideFile
from lockstep.table.schema import row_schema
from lockstep.table.sealed import sealed, verify


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator accepted of a partition, so that a halted stream could go on.

    Attributes:
        kind: The option that said so, without its dashes: "accept-loss", "skip-session", "from-snapshot", ...
        cause: The cause of the finding that it answers; empty when it answers none.
        start: First offset concerned.
        until: First offset after those concerned.
        session: The session, where there is one.
        who: The operator.
        why: The cause that was found.
    """

    kind: str
    cause: str
    start: int
    until: int
    session: str | None
    who: str
    why: str


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch did with one partition. `start` and `until` are offsets: [start, until).

    Counts are of messages, but `rows`; `accepted_without_row` counts accepted messages that
    emitted none; `skipped` those of kind SKIP; `quarantined` those kept in quarantine. Sessions that
    began before the offset `suspended_from` wait for their next snapshot; so do `suspended_sessions`, which an
    operator skips. `catching_up`: the log was cut, which an operator accepted. `retired`: the topic is gone or was
    made anew, which an operator accepted. `accepted_loss` says which offsets of this row were passed over. Times are
    UTC. `state_*` names the section of the durable state file that holds the newest change of the partition's state.

    `buffered` messages are held back in the state for a later batch; `released` ones were held back by an
    earlier one and are counted under what became of them, too; `late` ones are in the late table; so messages
    + released = with rows + accepted without row + skipped + dropped + quarantined + late + buffered.
    `timer_rows` counts timers, and sessions fallen silent, that emitted rows. `watermark` is the event time
    that the partition has come to, `rows_emitted` the number of rows that timers emitted at `until`, and
    `planned_at` the time by which absurd event times are told.
    """

    generation: int
    batch: int
    epoch: int
    committed_at: datetime
    topic_id: str
    topic: str
    partition: int
    start: int
    until: int
    stable_end: int
    high_watermark: int
    messages: int
    rows: int
    accepted_without_row: int
    skipped: int
    repeats: int
    gaps: int
    dropped: int
    quarantined: int
    suspended_from: int
    holes: list[Hole]
    leader_epoch: int | None
    first_event_time: datetime | None
    last_event_time: datetime | None
    newest_timestamp: datetime | None
    batch_seconds: float
    cpu_seconds: float
    state_file: str | None
    state_start: int | None
    state_length: int | None
    state_bytes: int
    restart_cause: str | None = None
    accepted_loss: str | None = None
    with_rows: int | None = None
    buffered: int = 0
    released: int = 0
    late: int = 0
    timer_rows: int = 0
    watermark: datetime | None = None
    rows_emitted: int = 0
    planned_at: datetime | None = None
    accepted: list[Accepted] = []
    suspended_sessions: list[SuspendedSession] = []
    catching_up: bool = False
    retired: bool = False


SCHEMA = row_schema(LedgerRow)


def write_ledger(ledger: Path, rows: Iterable[LedgerRow]) -> SideFile:
    """Write the ledger file of a batch, synced and not yet committed."""
    table = pa.Table.from_pylist([msgspec.structs.asdict(row) | _lists(row) for row in rows], schema=SCHEMA)
    file = sealed(ledger, write_file(ledger, table, prefix="ledger"))
    return SideFile(path=file.path, size=file.size, rows=file.rows, statistics=file.statistics)


def read_ledger(ledger: Path, *, first_batch: int = 0) -> list[LedgerRow]:
    """The rows of all batches from `first_batch` on, in order of batch, topic and partition.

    Raises:
        TableError: A file that is needed is missing, or any byte of it is wrong.
    """
    wanted, rows = pc.field("batch") >= first_batch, DeltaTable(ledger).to_pyarrow_dataset()
    for fragment in rows.get_fragments(filter=wanted):
        verify(ledger / Path(fragment.path).name, ledger.parent.name)
    table = rows.to_table(filter=wanted)
    order: list[tuple[str, Literal["ascending", "descending"]]]
    order = [("batch", "ascending"), ("topic_id", "ascending"), ("partition", "ascending")]
    return without_nulls(table.sort_by(order), LedgerRow)


def positions(ledger: Path, head: Head) -> dict[tuple[str, int], LedgerRow]:
    """The newest ledger row of every partition, by (topic id, partition)."""
    rows = read_ledger(ledger, first_batch=head.full_ledger_batch) if head.batch else []
    return {(row.topic_id, row.partition): row for row in rows if row.batch <= head.batch}


def positions_at(ledger: Path, batch: int) -> dict[tuple[str, int], LedgerRow]:
    """The newest ledger row of every partition as of an earlier batch; reads all that the ledger holds up to there."""
    table = DeltaTable(ledger).to_pyarrow_table(filters=[("batch", "<=", batch)])
    return {(row.topic_id, row.partition): row for row in without_nulls(table.sort_by("batch"), LedgerRow)}


def now() -> datetime:
    """The time, for columns that people read; no decision is taken by it."""
    return datetime.now(UTC)


def _lists(row: LedgerRow) -> dict[str, object]:
    lists: dict[str, list[Hole] | list[Accepted] | list[SuspendedSession]]
    lists = {"holes": row.holes, "accepted": row.accepted, "suspended_sessions": row.suspended_sessions}
    return {name: [msgspec.structs.asdict(item) for item in items] for name, items in lists.items()}
