"""Once: each id once, in any order; and the count at the end."""

from __future__ import annotations

import pytest

from lockstep import Envelope, Kind, Once, Record
from lockstep.errors import DeclarationError
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.gate_states import GateState
from tests.support.gate_feed import Content

Message = tuple[Envelope, bytes]


def with_id(name: str | int, content: bytes = b"x") -> Message:
    return Envelope("s", id=name), content


def numbered(number: int, content: bytes = b"x") -> Message:
    return Envelope("s", sequence=number), content


def anew(number: int, name: str | None = None) -> Message:
    return Envelope("s", Kind.SNAPSHOT, sequence=number, id=name, restarts_sequence=True), b"anew"


def end(count: int | None) -> Message:
    return Envelope("s", Kind.END, count=count), b"end"


CASES: dict[str, tuple[int, list[Message], list[tuple[str, str]]]] = {
    "any order": (9, [with_id("b"), with_id("a"), with_id("c")], [("accept", "")] * 3),
    "an id again with the same content": (
        9,
        [with_id("a"), with_id("b"), with_id("a")],
        [("accept", ""), ("accept", ""), ("duplicate", "repeat")],
    ),
    "an id again with other content": (
        9,
        [with_id("a"), with_id("a", b"y")],
        [("accept", ""), ("violation", "same id, other content")],
    ),
    "the id 1 is not the id '1'": (9, [with_id(1), with_id("1")], [("accept", ""), ("accept", "")]),
    "a repeat beyond the memory is not seen": (
        2,
        [with_id("a"), with_id("b"), with_id("c"), with_id("a"), with_id("c")],
        [("accept", "")] * 4 + [("duplicate", "repeat")],
    ),
    "numbers are no ids: the same again is a violation": (
        9,
        [numbered(1), numbered(3), numbered(1)],
        [("accept", ""), ("accept", ""), ("violation", "repeat")],
    ),
    "numbers that begin anew, as the producer says": (
        9,
        [numbered(1), numbered(2), anew(1), numbered(2, b"y"), numbered(2)],
        [("accept", "")] * 4 + [("violation", "same id, other content")],
    ),
    "ids are unique whatever begins anew": (
        9,
        [with_id("a"), anew(1, "b"), with_id("a")],
        [("accept", ""), ("accept", ""), ("duplicate", "repeat")],
    ),
    "the count at the end holds": (9, [with_id("a"), with_id("b"), end(3)], [("accept", "")] * 3),
    "the count at the end does not hold": (
        9,
        [with_id("a"), end(3)],
        [("accept", ""), ("violation", "ids missing")],
    ),
    "more messages than the count at the end": (
        9,
        [with_id("a"), with_id("b"), with_id("c"), end(3)],
        [("accept", "")] * 3 + [("violation", "ids missing")],
    ),
    "an end without count": (9, [with_id("a"), end(None)], [("accept", "")] * 2),
}


@pytest.mark.parametrize("case", CASES)
def test_each_message_once(case: str) -> None:
    keep, messages, told = CASES[case]
    gate = Once(keep_ids=keep).gate(PartitionTime())
    state = None
    found = []
    for offset, (envelope, content) in enumerate(messages):
        after: GateState
        after, verdict = gate.check(state, envelope, Record("t", "id", 0, offset, Content(content)))
        state = after if verdict.judgement.value == "accept" else state
        found.append((verdict.judgement.value, verdict.cause))
    assert told == found


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, 100_001])
def test_a_memory_of_no_size_is_refused(keep: object) -> None:
    with pytest.raises(DeclarationError, match="is not a number of ids between 1 and 100000"):
        Once(keep_ids=keep)  # type: ignore[arg-type]  # wrong on purpose
