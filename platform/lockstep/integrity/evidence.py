"""Message evidence of the strict class: how a producer shows that nothing is missing.

Each evidence is a gate of its own. All share one rule: an update of an unknown session is a
violation, because its state cannot be known. Each opens with what it proves.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.declare.place import Kind, Link, Place
from lockstep.declare.record import Record
from lockstep.integrity.verdict import ACCEPT, GateState, Verdict, violation

SNAPSHOT = Kind.SNAPSHOT


class Evidence:
    """Base of the evidences: a pure gate over the messages of one session."""

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        raise TypeError(f"{type(self).__name__} does not judge messages")


@dataclass(frozen=True)
class Sequence(Evidence):
    """Numbers that rise by one within a session, from any start.

    Proves order, completeness and no repeats. The state is the last number seen. A snapshot in
    the middle of a session may carry the next number, or repeat the last one, as real feeds do.
    """

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        number = place.sequence
        if number is None:
            return state, _no_evidence("sequence", place)
        if state is None:
            return (number, ACCEPT) if place.kind is SNAPSHOT else (None, _unknown(place))
        if number == state + 1 or (number == state and place.kind is SNAPSHOT):  # type: ignore[operator]  # an int here
            return number, ACCEPT
        return state, _sequence_broken(int(state), number)  # type: ignore[arg-type]  # an int here


@dataclass(frozen=True)
class Linked(Evidence):
    """Each message names its predecessor, or the first and last id that it covers.

    Proves order, completeness and no repeats. The state is [last id, 1 directly after a
    snapshot]. Directly after a snapshot an update may overlap it (first <= last id + 1 and
    last >= last id): feeds whose snapshot is taken beside the stream cannot cut exactly.
    """

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        link = place.link
        if link is None:
            return state, _no_evidence("link", place)
        if state is None:
            return ([link.last, 1], ACCEPT) if place.kind is SNAPSHOT else (None, _unknown(place))
        last, fresh = state  # type: ignore[misc]  # a list of two here
        if place.kind is SNAPSHOT:
            kept = link.last == last
        elif fresh:
            kept = _continues(link, last) or _covers(link, last)
        else:
            kept = _continues(link, last)
        if kept:
            return [link.last, int(place.kind is SNAPSHOT)], ACCEPT
        return state, violation("broken link", f"predecessor {last}", _shown(link))


@dataclass(frozen=True)
class Checksum(Evidence):
    """The fold verifies each result and raises `Violation` where it does not hold.

    Proves the state after each message that carries a checksum. The state is True once the
    session is known.
    """

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        if state or place.kind is SNAPSHOT:
            return True, ACCEPT
        return None, _unknown(place)


@dataclass(frozen=True)
class LogOnly(Checksum):
    """Nothing from the producer: proves that the log was read whole and in order, no more.

    Always shown as such: a message that the producer lost or swapped before Kafka is not seen.
    """


def _continues(link: Link, last: int) -> bool:
    """Whether the message names `last` as what came directly before it."""
    if link.previous is not None:
        return link.previous == last
    return link.first == last + 1


def _covers(link: Link, last: int) -> bool:
    """Whether the ids of the message reach over the end of the snapshot without a gap."""
    return link.first is not None and link.first <= last + 1 and link.last >= last


def _shown(link: Link) -> str:
    if link.previous is not None:
        return f"predecessor {link.previous} (ids to {link.last})"
    return f"ids {link.first} to {link.last}"


def _sequence_broken(last: int, number: int) -> Verdict:
    if number > last + 1:
        missing = str(last + 1) if number == last + 2 else f"{last + 1} to {number - 1}"
        return violation("gap", last + 1, f"{number}, missing {missing}")
    return violation("repeat" if number == last else "sequence goes back", last + 1, number)


def _unknown(place: Place) -> Verdict:
    return violation("unknown session", "a snapshot first", f"{place.kind.value} of a session without snapshot")


def _no_evidence(name: str, place: Place) -> Verdict:
    return violation("no evidence", f"a {name} from Transform.place", f"{name}=None in a {place.kind.value}")
