"""Runs the messages of a test through the engine's own fold, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, cast
from uuid import UUID

import msgspec
import pyarrow as pa
from typing_extensions import override

from lockstep.declare.decoders.base import RegisteredSchema, Registry
from lockstep.declare.lookup import Lookup, LookupRows, bind_lookups, make_row_index
from lockstep.declare.stream import Stream
from lockstep.declare.transform import M, R, S
from lockstep.engine.executor.compiled_stream import CompiledStream, compile_stream
from lockstep.engine.executor.fold import RangeFold
from lockstep.engine.executor.outcome import BufferFull, FoldStopped, MessageFailed
from lockstep.engine.executor.rejects import Exclusions
from lockstep.errors import LockstepError
from lockstep.model.position import Position
from lockstep.model.state_loss import merge_losses
from lockstep.state.changelog import make_empty_state
from lockstep.state.codec import StateNotOfItsType
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.testing.batches import TOPIC_ID, BatchedRun, find_latest_us
from lockstep.testing.recorder import Recorder, list_rejected
from lockstep.testing.result import RowWithOrigin, RunResult
from lockstep.testing.script import ChangedLookup, Event, InLog, SentMessage, Split, to_log

_NOWHERE = Path("/nonexistent/lockstep.testing")
"""Empty initial state is never read from a file, and a test writes none."""


def run(
    stream: Stream[M, S, R],
    *messages: M | bytes | SentMessage[M] | Event,
    key: str | bytes | None = None,
    topic: str = "testing",
    split: int | Split | None = None,
    lookups: Mapping[str, Iterable[msgspec.Struct]] | None = None,
    schemas: Mapping[int | UUID, RegisteredSchema] | None = None,
) -> RunResult[S, R]:
    """Fold messages as one partition of a topic, from offset 0, until the first violation.

    As in a real run, a refused message leaves no trace in rows and states.

    Args:
        stream: The declaration under test.
        messages: Messages of the stream's type, bytes as sent by a producer, or `SentMessage` for more. Between them
            events: `CRASH`, `RESTART`, `RENUMBER`, `NewTopic`, `Idle`, `ChangedLookup`.
        key: Key of messages without a key.
        topic: Name of the topic, for transforms that read it.
        split: Batches of this many messages, with a crash and a restart after each (see `Split`); None folds all at
            once in memory.
        lookups: The rows of each lookup table, by the name of the lookup; `ChangedLookup` changes them on the way.
        schemas: The schema registry of `Avro` and `Protobuf`: schemas by id or GUID.

    Raises:
        LockstepError: A typed message cannot be encoded: pass its bytes. Or the rows of a lookup are not as declared.
        LookupNotBound: The fold reads a lookup without rows.
        StateNotOfItsType: The fold left a state that cannot be saved or recovered.
    """
    tables = make_lookup_rows(stream.lookups, lookups or {})
    registry = None
    if schemas is not None:
        registry = GivenSchemas(schemas)
    with bind_lookups(tables):
        made = compile_stream(cast("Stream[object, object, msgspec.Struct]", stream), registry)
        wanted_split = None
        if split is not None:
            wanted_split = Split.of(split)
        return _run(stream, made, messages, key, topic, wanted_split, tables)


class GivenSchemas(Registry):
    """A schema registry of a test."""

    def __init__(self, schemas: Mapping[int | UUID, RegisteredSchema]) -> None:
        self._schemas = schemas

    @override
    def schema(self, schema_id: int) -> RegisteredSchema | None:
        return self._schemas.get(schema_id)

    @override
    def schema_by_guid(self, guid: UUID) -> RegisteredSchema | None:
        return self._schemas.get(guid)


def _run(
    stream: Stream[M, S, R],
    made: CompiledStream,
    messages: Sequence[M | bytes | SentMessage[M] | Event],
    key: str | bytes | None,
    topic: str,
    split: Split | None,
    tables: dict[str, LookupRows],
) -> RunResult[S, R]:
    if split is None and not any(isinstance(each, Event) for each in messages):
        sent = cast("Sequence[M | bytes | SentMessage[M]]", messages)
        log = [to_log(at, message, key, stream.decoder) for at, message in enumerate(sent)]
        ran: RunResult[S, R] | None = _at_once(stream.name, made, topic, log)
        if ran is not None:
            return ran
    batches = BatchedRun[S, R](made, topic, Split.of(split))
    with batches.folder():
        for message in messages:
            if isinstance(message, ChangedLookup):
                batches.event(message)
                tables |= make_lookup_rows(stream.lookups, {message.name: message.rows})
            elif isinstance(message, Event):
                batches.event(message)
            else:
                batches.add(to_log(batches.end, message, key, stream.decoder))
        return batches.ran(stream.name)


def make_lookup_rows(
    lookups: Sequence[Lookup[Any]], given: Mapping[str, Iterable[msgspec.Struct]]
) -> dict[str, LookupRows]:
    """The rows of a test by lookup and key.

    Raises:
        LockstepError: The stream declares no such lookup; a row is of another type; a key occurs twice.
    """
    declared = {each.name: each for each in lookups}
    tables = dict[str, LookupRows]()
    for name, rows in given.items():
        if name not in declared:
            names = ", ".join(declared) or "none"
            raise LockstepError(f"the stream has no lookup {name!r}", next_step=f"use one of its lookups: {names}")
        lookup = declared[name]
        listed = list(rows)
        problem = ""
        twice: list[object] = []
        wrong = [row for row in listed if not isinstance(row, lookup.row)]
        if wrong:
            problem = f"{wrong[0]!r} is no {lookup.row.__name__}"
        else:
            tables[name], twice = make_row_index(listed, lookup.key)
        if twice:
            problem = f"two rows have the key {twice[0]!r}"
        if problem:
            raise LockstepError(f"lookup {name}: {problem}", next_step="pass rows as in its table")
    return tables


def _at_once(stream: str, made: CompiledStream, topic: str, log: Sequence[InLog]) -> RunResult[S, R] | None:
    """Fold everything as one range, without a file; None where more is rejected than one range may hold."""
    notes = Recorder[R](made, topic)
    without = Exclusions()
    while True:
        try:
            first, kept = _Pass[S, R].settle(made, notes, log, without)
            break
        except StateNotOfItsType as error:
            if error.sessions <= without.unstorable:
                raise
            without = msgspec.structs.replace(without, unstorable=without.unstorable | error.sessions)
    if isinstance(first.fold.outcome, BufferFull):
        return None
    folded = [notes.folded(message.at) for message in kept.log]
    if first.finding is not None:
        folded.append(notes.violation(first.finding))
    judge = kept.fold.judge
    return RunResult(
        stream,
        tuple(folded),
        kept.states(),
        first.finding,
        tuple(kept.proven),
        tuple(list_rejected(judge.quarantined.rows)),
        tuple(list_rejected(judge.late.rows)),
        merge_losses(kept.fold.losses.losses),
    )


class _Pass(Generic[S, R]):
    """One pass of the engine's fold over some messages."""

    def __init__(
        self, made: CompiledStream, notes: Recorder[R], log: Sequence[InLog], without: Exclusions | None = None
    ) -> None:
        self.log = log
        self.without = without or Exclusions()
        notes.begin()
        self._schema = made.state
        version = make_empty_state(0, TOPIC_ID, 0, 0)
        local_stores = LocalStorePool(_NOWHERE, _NOWHERE)
        self._state = PartitionState[object].open(
            version, durable=_NOWHERE, local_stores=local_stores, schema=made.state
        )
        where = Position(topic=notes.topic, topic_id=TOPIC_ID, partition=0, next_offset=0)
        fold = self.fold = RangeFold(notes.compiled, where, self._state, self.without, find_latest_us(made))
        fold.fold(log)
        fold.finish(len(log))
        self.finding = fold.outcome.finding if isinstance(fold.outcome, FoldStopped) else None
        self.proven: list[RowWithOrigin[R]] = []
        if not isinstance(fold.outcome, FoldStopped | MessageFailed):
            table = None
            if fold.batches:
                table = pa.Table.from_batches(fold.batches)
            self.proven = notes.keep(table, fold.judge.quarantined.rows)

    @classmethod
    def settle(
        cls, made: CompiledStream, notes: Recorder[R], log: Sequence[InLog], without: Exclusions
    ) -> tuple[Self, Self]:
        """The last pass over all messages, and the one over those before its violation.

        Raises:
            StateNotOfItsType: A state cannot be stored.
        """
        first = cls(made, notes, log, without)
        # As a run does: the range is folded again without the message that failed.
        while isinstance(failed := first.fold.outcome, MessageFailed):
            first = cls(made, notes, log, first.without.with_failed(failed))
        last = first
        if first.finding is not None:
            last = cls(made, notes, log[: first.finding.offset], first.without)
        last.check_states()
        return first, last

    def check_states(self) -> None:
        """Refuse states that cannot be stored.

        Raises:
            StateNotOfItsType: There are such states; names all sessions with values that cannot be stored.
        """
        self._state.changed()

    def states(self) -> dict[str, S]:
        """The states of all open sessions, saved and recovered."""
        states = {}
        for session, entry in self._state.entries.items():
            if entry.state is None:
                continue  # its multipart snapshot is not complete
            states[session] = self._schema.recovered(session, entry.gate, entry.state)
        return cast("dict[str, S]", states)
