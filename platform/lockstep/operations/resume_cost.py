"""Counts the sessions and messages that the options of a resumption give up, in the log as it is now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.declare.transform import find_migration, is_overridden
from lockstep.engine.driver.run import require_registry
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.fold import decode_message
from lockstep.errors import LockstepError
from lockstep.integrity.resume_options import (
    SHOWN_MAX,
    Acceptance,
    AcceptLoss,
    FromSnapshot,
    SkipSession,
    list_alternatives,
    list_options,
)
from lockstep.model.finding import Finding
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.model.record import Kind, Record
from lockstep.operations.inspect.state import decode_sessions
from lockstep.settings import Settings
from lockstep.state.codec import StateSchema
from lockstep.table import ledger
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.verify.kafka_reader import KafkaTopicLog, WantedRange

EXAMINED_MAX = 10_000
"""Messages of a partition from its position on that are examined."""
OF_MESSAGES = (AcceptLoss, SkipSession, FromSnapshot)
"""Options whose cost is counted in messages."""


class OptionCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of an option after one finding.

    Attributes:
        option: The option with its argument.
        cause: Cause of the finding.
        place: The finding's place: TOPIC/PARTITION@OFFSET.
        sessions: Sessions that wait for a snapshot, or restart without their states; None if unknown.
        messages: Messages that would be in no row: passed over, quarantined, or lost with a state (`pending`).
        at_least: Later messages of the log were not examined.
    """

    option: str
    cause: str
    place: str
    sessions: int | None = None
    messages: int | None = None
    at_least: bool = False


class ReadMessage(NamedTuple):
    """A message from the position on: its offset, and of one that can be decoded its session and kind."""

    offset: int
    session: str | None = None
    kind: Kind = Kind.UPDATE


class StoredSessions(NamedTuple):
    """The sessions of a partition that have a state, and the messages that are lost with these states."""

    sessions: int
    messages: int


def count_given_up(
    option: Acceptance, until: int, messages: Iterable[ReadMessage], *, needs_snapshots: bool
) -> int | None:
    """Count the messages that an option gives up; None for an option of a topic.

    Args:
        option: The option.
        until: The first offset after those that it gives up anyway.
        messages: The messages from the position on, in order.
        needs_snapshots: A suspended session waits for a snapshot.
    """
    if not isinstance(option, OF_MESSAGES):
        return None
    only = option.session if isinstance(option, SkipSession) else None
    begun = set[str]()
    given_up = 0
    for offset, session, kind in messages:
        if only is not None and session != only:
            continue
        if offset < until:
            given_up += 1
        elif session is not None and not isinstance(option, AcceptLoss):
            if not needs_snapshots or kind in {Kind.SNAPSHOT, Kind.SNAPSHOT_PART}:
                begun.add(session)
            given_up += session not in begun and kind is not Kind.SKIP
    return given_up


class ResumeCosts:
    """The costs of the options of one halt."""

    def __init__(self, stream: AnyStream, settings: Settings) -> None:
        """Costs of a stream.

        Raises:
            SettingsError: The stream's decoder needs a registry, and none is configured.
        """
        self._stream = stream
        self._compiled = compile_stream(stream, require_registry(stream, settings.registry))
        self._log = KafkaTopicLog(settings.kafka)

    def count(self, folders: StreamFolders, head: Head) -> Iterator[OptionCost]:
        """The costs of all options after the first findings, the cheapest option of each finding first.

        Raises:
            KafkaError: Kafka does not answer.
            StateError: The stored state is missing, damaged or of another type.
        """
        rows = ledger.read_positions(folders, head)
        for finding in head.all_findings[:SHOWN_MAX]:
            row = rows.get(TopicIdPartition(finding.topic_id, finding.partition))
            if row is not None:
                yield from sorted(self._count_options(folders, finding, row), key=_compare)

    def _count_options(self, folders: StreamFolders, finding: Finding, row: LedgerRow) -> Iterator[OptionCost]:
        options = list_alternatives(finding)
        is_of_messages = any(isinstance(each, OF_MESSAGES) for each in options)
        messages: list[ReadMessage] = []
        at_least = False
        if is_of_messages:
            messages, at_least = self._read(row)
        stored = None
        if any(isinstance(each, FromSnapshot) for each in options):
            stored = self._read_states(folders, row)
        needs_snapshots = not self._stream.integrity.replaces_states
        for option in options:
            given_up = count_given_up(option, _find_until(option, finding), messages, needs_snapshots=needs_snapshots)
            sessions = None if given_up is None else int(isinstance(option, SkipSession))
            if isinstance(option, FromSnapshot) and given_up is not None and stored is not None:
                sessions = stored.sessions
                if not needs_snapshots:
                    given_up += stored.messages
            yield OptionCost(
                option=list_options([option]),
                cause=finding.cause,
                place=f"{finding.topic}/{finding.partition}@{finding.offset}",
                sessions=sessions,
                messages=given_up,
                at_least=at_least and not isinstance(option, AcceptLoss),
            )

    def _read(self, row: LedgerRow) -> tuple[list[ReadMessage], bool]:
        """The messages from the position on, and whether the log has more."""
        partition = TopicNamePartition(row.topic, row.partition)
        available = self._log.read_ranges([partition])[partition]
        start = max(row.until, available.first)
        # Bounded: a person decides by it, and a backlog need not be read whole.
        until = min(available.end, start + EXAMINED_MAX)
        if until <= start:
            return [], False
        wanted = WantedRange(row.topic, row.partition, start, until)
        messages = list[ReadMessage]()
        for piece in self._log.read([wanted]):
            for message in piece.messages:
                record = Record(row.topic, row.topic_id, row.partition, message.offset() or 0, message)
                messages.append(self._decode(record))
        return messages, until < available.end

    def _decode(self, record: Record) -> ReadMessage:
        try:
            envelope = self._compiled.envelope(decode_message(record.source, self._compiled), record)
        except LockstepError:
            raise  # the registry does not answer
        except Exception:  # noqa: BLE001  # the user's decoder and `envelope`
            return ReadMessage(record.offset)
        return ReadMessage(record.offset, envelope.session, envelope.kind)

    def _read_states(self, folders: StreamFolders, row: LedgerRow) -> StoredSessions:
        transform = self._stream.transform
        schema: StateSchema[object] = StateSchema(self._stream.types.stored, find_migration(transform))
        has_pending = is_overridden(type(transform), "pending")
        sessions = 0
        messages = 0
        for state in decode_sessions(row, folders.state, schema):
            sessions += 1
            if has_pending:
                messages += _count_pending(transform.pending, state)
        return StoredSessions(sessions, messages)


def _find_until(option: Acceptance, finding: Finding) -> int:
    """The first offset after those that an option gives up anyway."""
    if isinstance(option, (AcceptLoss, FromSnapshot)) and option.until is not None:
        return option.until
    return finding.until


def _compare(cost: OptionCost) -> tuple[bool, int, int]:
    """Sort key: fewer messages, then fewer sessions; unknown costs last."""
    return cost.messages is None, cost.messages or 0, cost.sessions or 0


def _count_pending(pending: Callable[[object], int], state: object) -> int:
    """The messages of a state; 0 if the user's code does not tell."""
    try:
        messages = pending(state)
    except LockstepError:
        raise
    except Exception:  # noqa: BLE001  # the user's code: the session is counted
        return 0
    return messages if type(messages) is int and messages > 0 else 0
