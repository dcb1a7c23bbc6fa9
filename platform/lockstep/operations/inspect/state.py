"""State of sessions as of a committed batch, from durable files only: no local store, no Spark, no Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.declare.transform import find_migration
from lockstep.errors import LockstepError
from lockstep.model.map_state import MapState
from lockstep.operations.past_batches import read_head_of_batch
from lockstep.operations.stream_table import open_table
from lockstep.state.bases import apply_blocks
from lockstep.state.changelog import Segment, SegmentHeader, StateVersion, make_state_version, read_segment
from lockstep.state.codec import StateMigrator, StateSchema
from lockstep.state.entry_order import Change
from lockstep.state.values import MapStateStore, is_session, make_session_prefix, read_versions
from lockstep.table import ledger
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import read_position


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """One session.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        session: Key of the session.
        position: The state is the fold of all offsets before this offset.
        stored_bytes: Size of the stored state.
        gate: Gate state of the session; None in a list of sessions.
        state: The user's state, with struct fields by name; None in a list of sessions. A map whose keys are not text
            is a list of {"key", "value"}.
    """

    topic: str
    partition: int
    session: str
    position: int
    stored_bytes: int
    gate: object = None
    state: object = None


class SessionStates(msgspec.Struct, frozen=True):
    """Sessions of a stream.

    Attributes:
        stream: Name of the stream.
        generation: Generation of the lineage.
        batch: Batch of this state.
        sessions: By topic, partition and session.
    """

    stream: str
    generation: int
    batch: int
    sessions: tuple[SessionState, ...]


class StateFilter(msgspec.Struct, frozen=True):
    """Selection of sessions; None for all.

    Attributes:
        topic: Only of this topic.
        partition: Only of this partition.
        session: Only this session; its state is then decoded.
    """

    topic: str | None = None
    partition: int | None = None
    session: str | None = None


class NoSuchSession(LockstepError):
    """No session with that key has a state.

    Attributes:
        topic: Requested topic; None for any.
        partition: Requested partition; None for any.
        session: Requested session; None for any.
    """

    def __init__(self, stream: str, wanted: StateFilter, places: str) -> None:
        super().__init__(
            f"no session{_name(wanted)} has a state; {places} partitions were read",
            next_step=f"lockstep state {stream} lists the existing sessions",
        )
        self.topic = wanted.topic
        self.partition = wanted.partition
        self.session = wanted.session


def _name(wanted: StateFilter) -> str:
    """Describe the selection, as far as there is one."""
    asked = (("", wanted.session), ("of topic ", wanted.topic), ("in partition ", wanted.partition))
    return "".join(f" {what}{value!r}" for what, value in asked if value is not None)


class NotRetained(LockstepError):
    """The state as of a batch is no longer kept, or the batch does not exist yet.

    Attributes:
        batch: The batch.
        oldest: The oldest batch whose state is kept.
        newest: The newest batch.
    """

    def __init__(self, stream: str, batch: int, oldest: int, newest: int) -> None:
        super().__init__(
            f"{stream} has no state as of batch {batch}: those of {oldest} to {newest} are kept",
            next_step=f"lockstep state {stream} --at BATCH, with one of these",
        )
        self.batch = batch
        self.oldest = oldest
        self.newest = newest


def read_states(stream: AnyStream, root: Path, wanted: StateFilter, at: int | None = None) -> SessionStates:
    """Read the selected sessions; decoded when one is named.

    Args:
        stream: The declaration.
        root: The table root.
        wanted: Selection of sessions.
        at: As of this batch; by default the last batch.

    Raises:
        NoTable: The stream has never run.
        NotRetained: The batch does not exist, or its state was deleted.
        NotRewindable: It is one of several that a promotion committed at once, whose states stayed with the shadow.
        NoSuchSession: None of that key, topic or partition has a state.
        StateDamaged: A durable file is missing or damaged.
        StateTypeChanged: The declared type cannot read the stored state.
    """
    folders = StreamFolders(stream.name, root)
    head = open_table(folders).base().head
    batch = head.batch if at is None else at
    rows = sorted(_rows_at(folders, head, batch), key=lambda row: (row.topic, row.partition))
    read = [row for row in rows if _is_wanted(row, wanted)]
    schema: StateSchema[object] = StateSchema(stream.types.stored, find_migration(stream.transform))
    sessions = list[SessionState]()
    for row in read:
        sessions += _sessions(row, folders.state, schema, wanted.session)
    if not sessions and wanted != StateFilter():
        raise NoSuchSession(stream.name, wanted, f"{len(read)} of {len(rows)}")
    return SessionStates(stream.name, head.generation, batch, tuple(sessions))


def decode_sessions(row: LedgerRow, durable: Path, schema: StateSchema[object]) -> Iterator[object]:
    """The states of all sessions of a partition, one by one; the stored ones are in memory.

    Raises:
        StateDamaged: A durable file is missing or damaged.
        StateTypeChanged: The declared type cannot read the stored state.
    """
    header, stored = _stored(row, durable, None)
    if header is None:
        return
    schema.accept(read_versions(header).shapes, f"the state of {row.topic}/{row.partition}")
    state = _LoadedState(schema, header, stored)
    for key, value in stored.items():
        if is_session(key):
            yield state.decoded(key, value)[1]


def find_state_version(row: LedgerRow) -> StateVersion:
    """The state that a ledger row refers to."""
    return make_state_version(row.generation, read_position(row))


def read_segments(version: StateVersion, durable: Path) -> Iterator[Segment]:
    """The segments of a state, from its base on; each read whole and verified.

    Raises:
        StateDamaged: One is missing or damaged.
    """
    if version.segment is None:
        return
    head = read_segment(durable, version.segment, version)
    for ref in head.header.chain:
        yield read_segment(durable, ref, version)
    yield head


def to_plain(value: object) -> object:
    """A state for JSON, with struct fields by name in any stored layout."""
    if isinstance(value, msgspec.Struct):
        return {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, (dict, MapState)):
        if all(isinstance(key, str) for key in value):
            return {key: to_plain(held) for key, held in value.items()}
        return [{"key": to_plain(key), "value": to_plain(held)} for key, held in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(held) for held in value]
    return value


def _rows_at(folders: StreamFolders, head: Head, batch: int) -> Iterable[LedgerRow]:
    """The newest ledger row of every partition as of a batch."""
    if not head.may_rewind_to(batch):
        raise NotRetained(head.stream, batch, head.rewind_floor, head.batch)
    if batch == head.batch:
        return ledger.read_positions(folders, head).values()
    target = read_head_of_batch(folders, head, batch)
    return ledger.read_positions_at(folders, batch, full_batch=target.full_ledger_batch).values()


def _is_wanted(row: LedgerRow, wanted: StateFilter) -> bool:
    return wanted.topic in {None, row.topic} and wanted.partition in {None, row.partition}


def _sessions(row: LedgerRow, durable: Path, schema: StateSchema[object], only: str | None) -> Iterable[SessionState]:
    wanted_key = None
    if only is not None:
        wanted_key = only.encode("utf-8", "surrogatepass")
    header, stored = _stored(row, durable, wanted_key)
    if header is None:
        return
    schema.accept(read_versions(header).shapes, f"the state of {row.topic}/{row.partition}")
    state = _LoadedState(schema, header, stored)
    for key, value in sorted(stored.items()):
        if is_session(key):
            decoded = None
            if only is not None:
                decoded = state.decoded(key, value)
            yield _session(row, key.decode("utf-8", "surrogatepass"), value, decoded)


class _LoadedState:
    """Some sessions of a partition, all in memory."""

    def __init__(self, schema: StateSchema[object], header: SegmentHeader, stored: dict[bytes, bytes]) -> None:
        self._schema = schema
        self._stored = stored
        self._migrator, self._rows = StateMigrator(schema, header), MapStateStore(schema.tables, self)

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one."""
        return self._stored.get(key)

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries whose keys have this prefix."""
        return [(key, value) for key, value in self._stored.items() if key.startswith(prefix)]

    def decoded(self, key: bytes, value: bytes) -> tuple[object, object]:
        """Gate and state of a session."""
        session = key.decode("utf-8", "surrogatepass")
        current = self._migrator.migrate(session, value, lambda name, shape: self._rows.old_rows(key, name, shape))
        gate, state = self._schema.decode(session, current.value)
        if current.migrated is not None:
            return gate, current.migrated.state
        self._rows.bind(key, state)
        return gate, state


def _stored(row: LedgerRow, durable: Path, only: bytes | None) -> tuple[SegmentHeader | None, dict[bytes, bytes]]:
    """The newest header of a partition's state, and the entries of each selected session."""
    stored: dict[bytes, bytes] = {}
    header: SegmentHeader | None = None
    for segment in read_segments(find_state_version(row), durable):
        header = segment.header
        apply_blocks(stored, (_select(block, only) for block in segment.blocks()))
    return header, stored


def _select(block: list[Change], only: bytes | None) -> list[Change]:
    """The changes of a block, without new values of other sessions than the selected one."""
    if only is None:
        return block
    prefix = make_session_prefix(only)
    return [change for change in block if change[1] is None or change[0] == only or change[0].startswith(prefix)]


def _session(row: LedgerRow, key: str, value: bytes, decoded: tuple[object, object] | None) -> SessionState:
    gate, state = decoded or (None, None)
    return SessionState(
        topic=row.topic,
        partition=row.partition,
        session=key.encode("utf-8", "replace").decode(),
        position=row.until,
        stored_bytes=len(value),
        gate=to_plain(gate),
        state=to_plain(state),
    )
