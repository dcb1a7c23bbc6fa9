"""Strict and its evidences Sequence, Linked, Checksum, LogOnly; duplicate dropping.

Each evidence is a separate gate; its docstring starts with the facts it proves. All share one rule: an update of an
unknown session is a violation, because its state cannot be known.

Promises: every message of a session is applied, in order, exactly once, as its evidence proves.
Refuses: gaps, duplicates, broken links, unknown sessions, undecodable messages, unexplained offset gaps.
Costs: one comparison a message; a producer that numbers, links or checksums its messages. With `repeats=DROP` a
digest of each message, and the newest ones in the state of the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic

from typing_extensions import override

from lockstep.errors import DeclarationError
from lockstep.integrity.base import IntegrityClass, OnGrowth, PartitionTime, SessionStart
from lockstep.integrity.buffering import BufferingUntilSnapshot
from lockstep.integrity.gate_states import (
    KNOWN,
    Deduplicated,
    GateState,
    KnownSession,
    LastLink,
    M,
    MessageCount,
)
from lockstep.integrity.sequence_numbers import (
    LARGEST,
    check_range,
    check_wrap,
    describe_wrap,
    make_digest,
    unwrap_sequence,
)
from lockstep.integrity.verdict import (
    ACCEPT,
    AnyGate,
    Gate,
    Judgement,
    Verdict,
    report_unknown_session,
    report_violation,
)
from lockstep.model.declaration import Declaration
from lockstep.model.fault import Fault
from lockstep.model.record import Envelope, Kind, Link, Record

REMEMBERED = 64
"""Messages that a producer may resend at once: its requests in flight (5) of a few messages of one session each.
Costs some 20 bytes each in the state of a session."""


_KEPT = (Judgement.ACCEPT, Judgement.BUFFER)


class Repeats(Enum):
    """How `Strict` treats a duplicate: same number, same content."""

    VIOLATION = "violation"
    DROP = "drop"


class DeduplicationGate(Gate[Deduplicated[M]], Generic[M]):
    """See the module."""

    def __init__(self, evidence: Gate[M]) -> None:
        self._evidence = evidence

    @override
    def check(
        self, state: Deduplicated[M] | None, envelope: Envelope, record: Record
    ) -> tuple[Deduplicated[M] | None, Verdict]:
        recent: dict[int, bytes] = {} if state is None else state.contents
        number = envelope.sequence if envelope.link is None else envelope.link.last
        content = make_digest(record)
        if number is not None and recent.get(number) == content:
            return state, Verdict(Judgement.DUPLICATE, "repeat", "each message once", str(number))
        inner_state = None if state is None else state.evidence
        inner, verdict = self._evidence.check(inner_state, envelope, record)
        if verdict.judgement not in _KEPT:
            return state, verdict
        if envelope.restarts_sequence:
            recent = {}
        if number is not None:
            recent.pop(number, None)  # the newest is last: the first is forgotten first
            recent[number] = content
            if len(recent) > REMEMBERED:
                del recent[next(iter(recent))]
        return Deduplicated(recent, inner), verdict

    @override
    def migrate_state(self, state: GateState) -> Deduplicated[M] | None:
        inner = self._evidence.migrate_state(forget_repeats(state))
        if inner is None:
            return None
        contents = state.contents if isinstance(state, Deduplicated) else {}
        return Deduplicated(contents, inner)

    @override
    def buffered_offsets(self, state: Deduplicated[M] | None) -> tuple[int, ...]:
        if state is None:
            return ()
        return self._evidence.buffered_offsets(state.evidence)


def forget_repeats(state: GateState) -> GateState:
    """The state of the evidence, of a state with or without the memory of repeats."""
    return state.evidence if isinstance(state, Deduplicated) else state


SNAPSHOT = Kind.SNAPSHOT
END = Kind.END


class Evidence(Gate[Any], Declaration):
    """Base of the evidences: a pure gate over the messages of one session."""

    @property
    def unordered_because(self) -> str:
        """See `IntegrityClass.unordered_because`."""
        return f"{type(self).__name__} does not compare sequence numbers"


@dataclass(frozen=True)
class Sequence(Evidence):
    """Numbers that increase by one within a session, from any start.

    Proves order, completeness and no duplicates. The state is the last number seen. A snapshot in the middle of a
    session may carry the next number, or repeat the last number; with `restarts_sequence` any number.

    Example: `Sequence(wraps_at=65_536)`

    Attributes:
        wraps_at: Modulus at which numbers restart at 0: 256 for 8 bits. A larger number is refused. A loss of half as
            many messages in a row or more is reported as falling numbers, and a loss of a whole modulus is invisible.
    """

    wraps_at: int | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid modulus."""
        check_wrap("Sequence.wraps_at", self.wraps_at)

    @property
    @override
    def unordered_because(self) -> str:
        return describe_wrap(self.wraps_at)

    @override
    def check(self, state: int | None, envelope: Envelope, record: Record) -> tuple[int | None, Verdict]:
        number = envelope.sequence
        if number is None:
            return state, _no_evidence("sequence", envelope)
        if state is None or (envelope.restarts_sequence and envelope.kind is SNAPSHOT):
            return _opened(envelope, number, number, self.wraps_at)
        if number == (following := state + 1):
            return following, ACCEPT  # an int for any type of the message's number
        if self.wraps_at is not None:
            if (refused := check_range(number, self.wraps_at)) is not None:
                return state, refused
            number = unwrap_sequence(number, state, self.wraps_at)
        if number == following or (number == state and envelope.kind is SNAPSHOT):
            # The unwrapped number, and an int for any type of the message's number.
            return (state if number == state else following), ACCEPT
        return state, _sequence_broken(state, number, self.wraps_at)

    @override
    def migrate_state(self, state: GateState) -> int | None:
        number = forget_repeats(state)
        return number if isinstance(number, int) else None


@dataclass(frozen=True)
class Linked(Evidence):
    """Each message names its predecessor, or the first and last id that it covers.

    Proves order, completeness and no duplicates. The state is the last id. The first update after the snapshot that
    opens the session may overlap it. If messages carry only their ids, that update must cover the first id after the
    snapshot. If messages name their predecessor (ids may then be omitted), it must cover the snapshot's own id. A
    message whose ids were all seen before is a duplicate, or goes back.
    """

    @override
    def check(self, state: LastLink | None, envelope: Envelope, record: Record) -> tuple[LastLink | None, Verdict]:
        link = envelope.link
        if link is None:
            return state, _no_evidence("link", envelope)
        if state is None or (envelope.restarts_sequence and envelope.kind is SNAPSHOT):
            return _opened(envelope, link.last, LastLink(link.last, is_fresh=True))
        last = state.last
        is_fresh = state.is_fresh
        if envelope.kind is SNAPSHOT:
            follows = link.last == last
        else:
            follows = _forward(link) and (_continues(link, last) or (is_fresh and _covers(link, last)))
        if follows:
            return LastLink(link.last, is_fresh and envelope.kind is SNAPSHOT), ACCEPT
        return state, _link_broken(last, envelope, link)

    @override
    def migrate_state(self, state: GateState) -> LastLink | None:
        link = forget_repeats(state)
        return link if isinstance(link, LastLink) else None


@dataclass(frozen=True)
class Checksum(Evidence):
    """The fold verifies each result and raises `Violation` on a mismatch.

    Proves the state after each message with a checksum, and the number of messages if an END carries it.
    """

    @override
    def check(
        self, state: MessageCount | KnownSession | None, envelope: Envelope, record: Record
    ) -> tuple[MessageCount | KnownSession | None, Verdict]:
        if type(state) is KnownSession:  # isinstance costs three times as much when it is not
            return state, ACCEPT
        seen = 1 if state is None else state.messages + 1
        if envelope.kind is END and envelope.count is not None and envelope.count != seen:
            return state, report_violation("count", f"{envelope.count} messages in the session", seen)
        if state is None and envelope.kind is not SNAPSHOT:
            return None, report_unknown_session(envelope, Judgement.VIOLATION)
        return MessageCount(seen), ACCEPT

    def migrate_state(self, state: GateState) -> MessageCount | KnownSession:
        """See `Gate.migrate_state`: a session known to another evidence stays known."""
        counted = forget_repeats(state)
        return counted if isinstance(counted, MessageCount) else KNOWN


@dataclass(frozen=True)
class LogOnly(Checksum):
    """No evidence from the producer except message counts of sessions, if it sends them.

    Proves that the log was read completely and in order. A message that the producer lost or reordered before Kafka is
    not detected.
    """


def _opened(envelope: Envelope, number: int, state: M, wraps_at: int | None = None) -> tuple[M | None, Verdict]:
    """The first message of a session: a snapshot with a number in range."""
    if envelope.kind is not SNAPSHOT:
        return None, report_unknown_session(envelope, Judgement.VIOLATION)
    refused = check_range(number, wraps_at)
    if refused is not None:
        return None, refused
    return state, ACCEPT


def _continues(link: Link, last: int) -> bool:
    """Whether the message names `last` as its predecessor."""
    if link.previous is not None:
        return link.previous == last
    return link.first == last + 1


def _covers(link: Link, last: int) -> bool:
    """Whether the ids of the message span the end of the snapshot without a gap."""
    if link.first is None:
        return False
    first_needed = last + 1 if link.previous is None else last
    return link.first <= first_needed <= link.last


def _id_before(link: Link) -> int | None:
    """The newest id before the message, according to it."""
    if link.previous is not None:
        return link.previous
    return None if link.first is None else link.first - 1


def _forward(link: Link) -> bool:
    """Whether the message ends after it starts: otherwise it could be accepted again and again."""
    after_first = link.first is None or link.last >= link.first
    return after_first and (link.previous is None or link.last > link.previous) and link.last <= LARGEST


def _link_broken(last: int, envelope: Envelope, link: Link) -> Verdict:
    """The verdict on a message that does not follow; one whose ids were all seen before loses nothing."""
    expected = f"predecessor {last}"
    shown = _shown(link)
    is_snapshot = envelope.kind is SNAPSHOT
    if not is_snapshot and not _forward(link):
        return report_violation("broken link", expected, shown)
    if link.last <= last:
        cause = "repeat" if link.last == last else "sequence goes back"
        return report_violation(cause, expected, shown)
    last_missing = link.last if is_snapshot else _id_before(link)
    if last_missing is None or last_missing <= last:
        return report_violation("broken link", expected, shown)
    missing = str(last_missing) if last_missing == last + 1 else f"{last + 1} to {last_missing}"
    return report_violation("gap", expected, f"{shown}, missing {missing}")


def _shown(link: Link) -> str:
    if link.previous is not None:
        return f"predecessor {link.previous} (ids to {link.last})"
    return f"ids {link.first} to {link.last}"


def _sequence_broken(last: int, number: int, wraps_at: int | None) -> Verdict:
    expected = _wrap(last + 1, wraps_at)
    sent = _wrap(number, wraps_at)
    if number > last + 1:
        missing = str(expected) if number == last + 2 else f"{expected} to {_wrap(number - 1, wraps_at)}"
        return report_violation("gap", expected, f"{sent}, missing {missing}")
    if number == last:
        return report_violation("repeat", expected, sent)
    hint = ""
    if wraps_at:  # a loss of half a round or more is a number that goes back
        hint = f" ({last - number} back; wraps_at={wraps_at} tells up to {(wraps_at - 1) // 2} ahead)"
    return report_violation("sequence goes back", expected, f"{sent}{hint}")


def _wrap(number: int, wraps_at: int | None) -> int:
    """The number as the producer sends it."""
    return number if wraps_at is None else number % wraps_at


def _no_evidence(name: str, envelope: Envelope) -> Verdict:
    return report_violation("no evidence", f"a {name} from Transform.envelope", f"{name}=None ({envelope.kind.value})")


@dataclass(frozen=True, kw_only=True)
class Strict(IntegrityClass):
    """In order, none missing, no duplicates.

    Example: `Strict(evidence=Sequence())`

    Attributes:
        evidence: `Sequence()`, `Linked()`, `Checksum()` or `LogOnly()`.
        on_growth: The effect of new partitions of a topic.
        repeats: How a duplicate (same number and content) is treated.
        buffer_until_snapshot: For feeds whose snapshot is fetched separately from the stream: the updates of a session
            are buffered until its snapshot (10,000 at most; docs/integrity.md).
    """

    evidence: Evidence
    on_growth: OnGrowth = OnGrowth.VIOLATION
    repeats: Repeats = Repeats.VIOLATION
    buffer_until_snapshot: bool = False

    fault_policy: ClassVar[Mapping[Fault, Judgement]] = dict.fromkeys(Fault, Judgement.VIOLATION)

    def __post_init__(self) -> None:
        """Refuse evidence that is not a value of an evidence class, and options that it cannot support."""
        if not isinstance(self.evidence, Evidence):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            raise DeclarationError(
                "Strict.evidence", self.evidence, "is not evidence", "for example Strict(evidence=Sequence())"
            )
        if self.repeats is Repeats.DROP and isinstance(self.evidence, Checksum):
            problem = f"needs numbers, and {type(self.evidence).__name__} has none: duplicates cannot be detected"
            raise DeclarationError("Strict.repeats", self.repeats, problem, "evidence=Sequence() or Linked()")
        self._check_round()
        if self.buffer_until_snapshot:
            self._check_buffer()

    def _check_round(self) -> None:
        """Refuse a modulus so small that a message of the next cycle could pass for a duplicate in this cycle."""
        wraps_at = self.evidence.wraps_at if isinstance(self.evidence, Sequence) else None
        if wraps_at is not None and self.repeats is Repeats.DROP and wraps_at < 2 * REMEMBERED:
            problem = f"is less than twice the {REMEMBERED} messages among which duplicates are detected by number"
            raise DeclarationError("Sequence.wraps_at", wraps_at, problem, "repeats=Repeats.VIOLATION")

    def _check_buffer(self) -> None:
        """Refuse to buffer for a snapshot that cannot be compared, or that never arrives."""
        field = "Strict.buffer_until_snapshot"
        if isinstance(self.evidence, Checksum):
            problem = (
                f"needs numbers, and {type(self.evidence).__name__} has none: the updates a snapshot covers are unknown"
            )
            raise DeclarationError(field, value=True, problem=problem, next_step="evidence=Sequence() or Linked()")
        if self.session_start is SessionStart.FIRST_MESSAGE:
            problem = "waits for a snapshot, and sessions start at their first message"
            raise DeclarationError(field, value=True, problem=problem, next_step="leave one of the two out")

    @property
    @override
    def unordered_because(self) -> str:
        return self.evidence.unordered_because

    @property
    @override
    def waits_for_snapshot(self) -> bool:
        return self.buffer_until_snapshot

    @property
    @override
    def buffer(self) -> str:
        return "Strict(buffer_until_snapshot=True)" if self.buffer_until_snapshot else ""

    @override
    def gate(self, time: PartitionTime) -> AnyGate:
        del time
        wraps_at = self.evidence.wraps_at if isinstance(self.evidence, Sequence) else None
        gate: AnyGate = self.evidence
        if self.buffer_until_snapshot:
            gate = BufferingUntilSnapshot(gate, wraps_at)
        if self.repeats is Repeats.DROP:  # outside: a repeat of a buffered update is dropped, too
            gate = DeduplicationGate(gate)
        return gate

    @override
    def guarantee(self) -> str:
        evidence = type(self.evidence).__name__
        only = " (the log only: what the producer lost is not seen)" if isinstance(self.evidence, LogOnly) else ""
        dropped = "; identical repeats dropped" if self.repeats is Repeats.DROP else ""
        waits = "; updates wait for their snapshot" if self.buffer_until_snapshot else ""
        return f"strict: in order, none missing, none repeated, by {evidence}{only}{dropped}{waits}"
