"""Message evidence of the strict class: how a producer shows that nothing is missing.

Each evidence is a gate of its own. All share one rule: an update of an unknown session is a
violation, because its state cannot be known. Each opens with what it proves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

from lockstep.declare.place import Kind, Link, Place
from lockstep.declare.record import Record
from lockstep.integrity.verdict import ACCEPT, GateState, Verdict, violation

SNAPSHOT = Kind.SNAPSHOT
LARGEST = 2**63 - 1
"""What a state file and a table can hold; decoders let larger numbers pass."""


class Evidence(ABC):
    """Base of the evidences: a pure gate over the messages of one session."""

    @abstractmethod
    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""


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
            return _opened(place, number, number)
        if number == state + 1 or (number == state and place.kind is SNAPSHOT):  # type: ignore[operator]  # an int here
            return number, ACCEPT
        return state, _sequence_broken(int(state), number)  # type: ignore[arg-type]  # an int here


@dataclass(frozen=True)
class Linked(Evidence):
    """Each message names its predecessor, or the first and last id that it covers.

    Proves order, completeness and no repeats. The state is [last id, 1 until the first update].
    Feeds whose snapshot is taken beside the stream cannot cut exactly, so the first update after
    the snapshot that opens the session may overlap it. Where messages name only their ids, the
    first id after the snapshot must be among them; where they name their predecessor (ids may
    then be left out), the snapshot's own id must be.
    """

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        link = place.link
        if link is None:
            return state, _no_evidence("link", place)
        if state is None:
            return _opened(place, link.last, [link.last, 1])
        last, fresh = cast("list[int]", state)
        if place.kind is SNAPSHOT:
            kept = link.last == last
        else:
            kept = _forward(link) and (_continues(link, last) or (bool(fresh) and _covers(link, last)))
        if kept:
            return [link.last, fresh if place.kind is SNAPSHOT else 0], ACCEPT
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


def _opened(place: Place, number: int, state: GateState) -> tuple[GateState, Verdict]:
    """The first message of a session: a snapshot, whose number can be kept."""
    if place.kind is not SNAPSHOT:
        return None, _unknown(place)
    refused = out_of_range(number)
    return (None, refused) if refused is not None else (state, ACCEPT)


def out_of_range(number: int) -> Verdict | None:
    """The verdict on a number that neither state nor table can hold."""
    if -LARGEST <= number <= LARGEST:
        return None
    return violation("number out of range", "a number of 64 bits", number)


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


def _forward(link: Link) -> bool:
    """Whether the message ends after it begins: one that does not could be accepted again and again."""
    after_first = link.first is None or link.last >= link.first
    return after_first and (link.previous is None or link.last > link.previous) and link.last <= LARGEST


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
    return violation("no evidence", f"a {name} from Transform.place", f"{name}=None ({place.kind.value})")
