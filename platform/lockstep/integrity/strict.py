"""Strict and its evidences Sequence, Linked, Checksum, LogOnly; duplicate dropping.

The state of a session is {"r": content of the newest messages by number, "g": what the evidence remembers}.

Each evidence is a gate of its own. All share one rule: an update of an unknown session is a
violation, because its state cannot be known. Each opens with what it proves.

Promises: every message of a session is applied, in order, exactly once, as its evidence proves.
Refuses: gaps, repeats, broken links, unknown sessions, undecodable messages, unproven holes.
Costs: one comparison a message; a producer that numbers, links or sums what it sends. With `repeats=DROP` a
digest of each message, and the newest ones in the state of the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypedDict, cast

from lockstep.errors import DeclarationError
from lockstep.integrity.base import Fault, IntegrityClass, OnGrowth, PartitionTime, SessionStart
from lockstep.integrity.buffering import BufferingUntilSnapshot
from lockstep.integrity.sequence_numbers import LARGEST, check_wrap, is_out_of_range, make_digest, unwrap_sequence
from lockstep.integrity.verdict import (
    ACCEPT,
    Gate,
    GateState,
    Judgement,
    Verdict,
    report_unknown_session,
    report_violation,
)
from lockstep.model.record import Envelope, Kind, Link, Record

REMEMBERED = 64
"""What a producer sends again at once: its requests in flight (5) of a few messages of one session each. Costs
some 20 bytes each in the state of a session."""


_KEPT = (Judgement.ACCEPT, Judgement.BUFFER)


class Repeats(Enum):
    """What the strict class makes of a message that came before, with the same content."""

    VIOLATION = "violation"
    DROP = "drop"


class _Seen(TypedDict):
    """What is remembered of a session."""

    r: dict[int, bytes]
    g: GateState


class DeduplicationGate(Gate):
    """See the module."""

    def __init__(self, evidence: Gate) -> None:
        self._evidence = evidence

    def check(self, state: GateState, place: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        seen = cast("_Seen", state) if state is not None else _Seen(r={}, g=None)
        number = place.link.last if place.link is not None else place.sequence
        content, recent = make_digest(record), seen["r"]
        if number is not None and recent.get(number) == content:
            return state, Verdict(Judgement.DUPLICATE, "repeat", "each message once", str(number))
        inner, verdict = self._evidence.check(seen["g"], place, record)
        if verdict.judgement not in _KEPT:
            return state, verdict
        if place.restarts_sequence:
            recent = {}
        if number is not None:
            recent.pop(number, None)
            recent[number] = content
            if len(recent) > REMEMBERED:
                del recent[next(iter(recent))]
        return cast("GateState", _Seen(r=recent, g=inner)), verdict

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`."""
        known = cast("_Seen", state) if is_seen(state) else _Seen(r={}, g=state)
        inner = self._evidence.adapt(known["g"])
        return None if inner is None else cast("GateState", _Seen(r=known["r"], g=inner))

    def held(self, state: GateState) -> tuple[int, ...]:
        """See `Gate.held`."""
        return () if state is None else self._evidence.held(cast("_Seen", state)["g"])


def is_seen(state: GateState) -> bool:
    """Whether a state is of this gate."""
    return isinstance(state, dict) and state.keys() == {"r", "g"}


def drop_duplicates(state: GateState) -> GateState:
    """What the evidence remembered."""
    return cast("_Seen", state)["g"] if is_seen(state) else state


SNAPSHOT, END = Kind.SNAPSHOT, Kind.END


class Evidence(Gate):
    """Base of the evidences: a pure gate over the messages of one session."""


@dataclass(frozen=True)
class Sequence(Evidence):
    """Numbers that rise by one within a session, from any start.

    Proves order, completeness and no repeats. The state is the last number seen. A snapshot in
    the middle of a session may carry the next number, or repeat the last one, as real feeds do; one
    that `restarts_sequence` may carry any.

    Attributes:
        wraps_at: How many numbers there are before they begin at 0 again: 256 for 8 bits. A number beyond them
            is refused. Half a round is the bound of what can be told: a loss of half as many messages in a row or
            more is told as numbers that go back, and one of a whole round cannot be seen.
    """

    wraps_at: int | None = None

    def __post_init__(self) -> None:
        """Refuse a wrap-around that is none."""
        check_wrap("Sequence.wraps_at", self.wraps_at)

    def check(self, state: GateState, place: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        number = place.sequence
        if number is None:
            return state, _no_evidence("sequence", place)
        if state is None or (place.restarts_sequence and place.kind is SNAPSHOT):
            return _opened(place, number, number, self.wraps_at)
        last: int = state  # type: ignore[assignment]  # an int here; a cast costs as much as the comparison
        if number == last + 1 or (number == last and place.kind is SNAPSHOT):
            return number, ACCEPT
        if self.wraps_at is not None:
            if (refused := is_out_of_range(number, self.wraps_at)) is not None:
                return state, refused
            number = unwrap_sequence(number, last, self.wraps_at)
            if number == last + 1 or (number == last and place.kind is SNAPSHOT):
                return number, ACCEPT
        return state, _sequence_broken(last, number, self.wraps_at)

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`."""
        number = drop_duplicates(state)
        return number if isinstance(number, int) and not isinstance(number, bool) else None


@dataclass(frozen=True)
class Linked(Evidence):
    """Each message names its predecessor, or the first and last id that it covers.

    Proves order, completeness and no repeats. The state is [last id, 1 until the first update].
    Feeds whose snapshot is taken beside the stream cannot cut exactly, so the first update after
    the snapshot that opens the session may overlap it. Where messages name only their ids, the
    first id after the snapshot must be among them; where they name their predecessor (ids may
    then be left out), the snapshot's own id must be. A message whose ids all came before is a
    repeat, or goes back: the session is whole without it.
    """

    def check(self, state: GateState, place: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        link = place.link
        if link is None:
            return state, _no_evidence("link", place)
        if state is None or (place.restarts_sequence and place.kind is SNAPSHOT):
            return _opened(place, link.last, [link.last, 1])
        last, fresh = cast("list[int]", state)
        if place.kind is SNAPSHOT:
            kept = link.last == last
        else:
            kept = _forward(link) and (_continues(link, last) or (bool(fresh) and _covers(link, last)))
        if kept:
            return [link.last, fresh if place.kind is SNAPSHOT else 0], ACCEPT
        return state, _link_broken(last, place, link)

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`."""
        link = drop_duplicates(state)
        return link if isinstance(link, list) else None


@dataclass(frozen=True)
class Checksum(Evidence):
    """The fold verifies each result and raises `Violation` where it does not hold.

    Proves the state after each message that carries a checksum, and the number of messages where
    an END gives it. The state is that number; True for a session of which it is not known.
    """

    def check(self, state: GateState, place: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        if state is True:
            return True, ACCEPT
        known: int = state or 0  # type: ignore[assignment]  # an int here; a cast costs as much as the sum
        seen = known + 1
        if place.kind is END and place.count is not None and place.count != seen:
            return state, report_violation("count", f"{place.count} messages in the session", seen)
        if state is None and place.kind is not SNAPSHOT:
            return None, report_unknown_session(place, Judgement.VIOLATION)
        return seen, ACCEPT

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`: any session that another evidence knew is known."""
        known = drop_duplicates(state)
        return known if isinstance(known, int) else True


@dataclass(frozen=True)
class LogOnly(Checksum):
    """Nothing from the producer but, where it sends them, the counts of its sessions.

    Proves that the log was read whole and in order, no more. Always shown as such: a message that the producer
    lost or swapped before Kafka is not seen.
    """


def _opened(place: Envelope, number: int, state: GateState, wraps_at: int | None = None) -> tuple[GateState, Verdict]:
    """The first message of a session: a snapshot, whose number can be kept."""
    if place.kind is not SNAPSHOT:
        return None, report_unknown_session(place, Judgement.VIOLATION)
    refused = is_out_of_range(number, wraps_at)
    return (None, refused) if refused is not None else (state, ACCEPT)


def _continues(link: Link, last: int) -> bool:
    """Whether the message names `last` as what came directly before it."""
    if link.previous is not None:
        return link.previous == last
    return link.first == last + 1


def _covers(link: Link, last: int) -> bool:
    """Whether the ids of the message reach over the end of the snapshot without a gap."""
    if link.first is None:
        return False
    first_needed = last + 1 if link.previous is None else last
    return link.first <= first_needed <= link.last


def _id_before(link: Link) -> int | None:
    """The newest id that the message says came before it."""
    if link.previous is not None:
        return link.previous
    return None if link.first is None else link.first - 1


def _forward(link: Link) -> bool:
    """Whether the message ends after it begins: one that does not could be accepted again and again."""
    after_first = link.first is None or link.last >= link.first
    return after_first and (link.previous is None or link.last > link.previous) and link.last <= LARGEST


def _link_broken(last: int, place: Envelope, link: Link) -> Verdict:
    """What is wrong with a message that does not follow: nothing is lost by one whose ids all came before."""
    expected, shown = f"predecessor {last}", _shown(link)
    is_snapshot = place.kind is SNAPSHOT
    if not is_snapshot and not _forward(link):
        return report_violation("broken link", expected, shown)
    if link.last <= last:
        return report_violation("repeat" if link.last == last else "sequence goes back", expected, shown)
    before = link.last if is_snapshot else _id_before(link)
    if before is None or before <= last:
        return report_violation("broken link", expected, shown)
    missing = str(before) if before == last + 1 else f"{last + 1} to {before}"
    return report_violation("gap", expected, f"{shown}, missing {missing}")


def _shown(link: Link) -> str:
    if link.previous is not None:
        return f"predecessor {link.previous} (ids to {link.last})"
    return f"ids {link.first} to {link.last}"


def _sequence_broken(last: int, number: int, wraps_at: int | None) -> Verdict:
    shown = [value if wraps_at is None else value % wraps_at for value in (last + 1, number - 1, number)]
    if number > last + 1:
        missing = str(shown[0]) if number == last + 2 else f"{shown[0]} to {shown[1]}"
        return report_violation("gap", shown[0], f"{shown[2]}, missing {missing}")
    if number == last:
        return report_violation("repeat", shown[0], shown[2])
    told = f" ({last - number} back; wraps_at={wraps_at} tells up to {(wraps_at - 1) // 2} ahead)" if wraps_at else ""
    return report_violation("sequence goes back", shown[0], f"{shown[2]}{told}")


def _no_evidence(name: str, place: Envelope) -> Verdict:
    return report_violation("no evidence", f"a {name} from Transform.envelope", f"{name}=None ({place.kind.value})")


@dataclass(frozen=True, kw_only=True)
class Strict(IntegrityClass):
    """In order, none missing, none repeated.

    Attributes:
        evidence: `Sequence()`, `Linked()`, `Checksum()` or `LogOnly()`.
        on_growth: What the growth of a topic by partitions does.
        repeats: What a message does that came before, with the same number and content.
        buffer_until_snapshot: For feeds whose snapshot is fetched beside the stream (over REST): the updates of a
            session before its snapshot wait for it (10,000 at most). Those that it covers, whose numbers are not
            above its own, are dropped and counted, before it and directly after it; the others are applied after
            it, if none is missing.
    """

    evidence: Evidence
    on_growth: OnGrowth = OnGrowth.VIOLATION
    repeats: Repeats = Repeats.VIOLATION
    buffer_until_snapshot: bool = False

    answers: ClassVar[Mapping[Fault, Judgement]] = dict.fromkeys(Fault, Judgement.VIOLATION)

    def __post_init__(self) -> None:
        """Refuse what is not evidence, such as the class instead of a value, and what it cannot support."""
        if not isinstance(self.evidence, Evidence):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            raise DeclarationError(
                "Strict.evidence", self.evidence, "is not evidence", "for example Strict(evidence=Sequence())"
            )
        if self.repeats is Repeats.DROP and isinstance(self.evidence, Checksum):
            problem = f"needs numbers, and {type(self.evidence).__name__} has none: a repeat cannot be told"
            raise DeclarationError("Strict.repeats", self.repeats, problem, "evidence=Sequence() or Linked()")
        self._check_round()
        if self.buffer_until_snapshot:
            self._check_buffer()

    def _check_round(self) -> None:
        """Refuse to take a message of the next round for a repeat of one in this."""
        wraps_at = self.evidence.wraps_at if isinstance(self.evidence, Sequence) else None
        if wraps_at is not None and self.repeats is Repeats.DROP and wraps_at < 2 * REMEMBERED:
            problem = f"is less than twice the {REMEMBERED} messages among which repeats are told by their numbers"
            raise DeclarationError("Sequence.wraps_at", wraps_at, problem, "repeats=Repeats.VIOLATION")

    def _check_buffer(self) -> None:
        """Refuse to wait for a snapshot that cannot be compared, or that never comes."""
        field = "Strict.buffer_until_snapshot"
        if isinstance(self.evidence, Checksum):
            problem = (
                f"needs numbers, and {type(self.evidence).__name__} has none: what a snapshot covers cannot be told"
            )
            raise DeclarationError(field, value=True, problem=problem, next_step="evidence=Sequence() or Linked()")
        if self.session_start is SessionStart.FIRST_MESSAGE:
            problem = "waits for a snapshot, and sessions begin at their first message"
            raise DeclarationError(field, value=True, problem=problem, next_step="leave one of the two out")

    @property
    def in_order(self) -> bool:
        """See `IntegrityClass.in_order`."""
        return not (isinstance(self.evidence, Sequence) and self.evidence.wraps_at)

    @property
    def waits_for_snapshot(self) -> bool:
        """See `IntegrityClass.waits_for_snapshot`."""
        return self.buffer_until_snapshot

    def gate(self, time: PartitionTime) -> Gate:
        """See `IntegrityClass.gate`."""
        del time
        wraps_at = self.evidence.wraps_at if isinstance(self.evidence, Sequence) else None
        gate = BufferingUntilSnapshot(self.evidence, wraps_at) if self.buffer_until_snapshot else self.evidence
        return DeduplicationGate(gate) if self.repeats is Repeats.DROP else gate

    def promise(self) -> str:
        """See `IntegrityClass.promise`."""
        evidence = type(self.evidence).__name__
        only = " (the log only: what the producer lost is not seen)" if isinstance(self.evidence, LogOnly) else ""
        dropped = "; identical repeats dropped" if self.repeats is Repeats.DROP else ""
        waits = "; updates wait for their snapshot" if self.buffer_until_snapshot else ""
        return f"strict: in order, none missing, none repeated, by {evidence}{only}{dropped}{waits}"
