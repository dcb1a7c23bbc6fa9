"""State continues at other offsets: their order is kept, and all are before the new position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.integrity.gate_states import ActiveSession, SuspensionMark
from lockstep.model.position import Position, SuspendedSession
from lockstep.model.state_types import hash_of_type_schema, make_type_schema
from lockstep.state.bases import add_base, read_entries
from lockstep.state.changelog import SegmentHeader, StateFileWriter, StateVersion
from lockstep.state.timers import CLOCK, HELD
from lockstep.state.translation import NotTranslatable, OffsetMap, Translation, translate_state
from lockstep.state.values import make_type_tag

if TYPE_CHECKING:
    from pathlib import Path

PACK = msgspec.msgpack.encode


def held(next_offset: int = 100, suspended_from: int = 0, *before: int) -> Position:
    skipped = tuple(SuspendedSession(f"s{at}", at) for at in before)
    return Position(
        topic="t",
        topic_id="old",
        partition=0,
        next_offset=next_offset,
        suspended_from=suspended_from,
        suspended_sessions=skipped,
    )


@given(st.integers(1, 40), st.integers(0, 60), st.lists(st.integers(0, 40), max_size=3), st.data())
def test_what_began_before_an_offset_began_before_its_place(
    position: int, place: int, limits: list[int], data: st.DataObject
) -> None:
    source = held(position, *(limits or [0]))
    try:
        offsets = OffsetMap(source, place)
    except NotTranslatable:
        return
    for offset in data.draw(st.lists(st.integers(0, position - 1), max_size=5)):
        moved = offsets.translate(offset)
        assert 0 <= moved < max(place, 1)
        assert moved <= offset
        for limit in limits:
            assert (offset < limit) is (moved < offsets.translate(limit))
    assert all(offsets.translate(limit) <= place for limit in limits if limit)


def test_what_is_given_up_ahead_or_has_no_room_is_refused() -> None:
    with pytest.raises(NotTranslatable, match="gave up offsets up to 120"):
        OffsetMap(held(100, 120), 40)
    with pytest.raises(NotTranslatable, match="do not fit before offset 1"):
        OffsetMap(held(100, 10, 20, 30), 1)
    with pytest.raises(NotTranslatable, match="truncated"):
        Translation(msgspec.structs.replace(held(), catching_up=True), "t", "new", 40).make_position()
    assert [OffsetMap(held(), 40).translate(at) for at in (-1, 0, 60, 61, 99)] == [-1, 0, 0, 1, 39]
    assert OffsetMap(held(), 100).translate(99) == 99


class Panel(msgspec.Struct):
    values: dict[str, int]


def write(folder: Path, entries: dict[bytes, bytes]) -> Position:
    """Write a base of these entries before offset 100; return the position with it."""
    shape = make_type_schema(Panel)
    header = SegmentHeader(1, "old", 0, 100, (), hash_of_type_schema(shape), shape, 0, 0, 0)
    with StateFileWriter.open(folder, "g1") as writer:
        added = add_base(writer, StateVersion(1, "old", 0, 100, None), header, entries)
    assert added is not None
    return msgspec.structs.replace(held(suspended_from=50), state=added[0])


def test_gates_and_clocks_get_other_offsets_and_states_stay_byte_by_byte(tmp_path: Path) -> None:
    state = PACK(Panel({"a": 60}))
    tag = make_type_tag("0" * 32)
    entries = {
        b"a": PACK((ActiveSession(70, 7), msgspec.Raw(state))),
        b"b": tag + PACK((SuspensionMark(30, 90, is_lost=True), msgspec.Raw(state))),
        b"c": PACK((5, msgspec.Raw(state))),
        CLOCK + b"a": PACK([3, 4, 99]),
    }
    position = write(tmp_path / "old", entries)
    move = Translation(position, "src.t", "new", 40)
    copied = translate_state(tmp_path / "old", [move], tmp_path / "new", generation=1, label="g1")
    (there,) = copied.positions
    assert (there.topic, there.topic_id, there.next_offset, there.suspended_from) == ("src.t", "new", 40, 1)
    _, found = read_entries(tmp_path / "new", StateVersion(1, "new", 0, 40, there.state))
    assert found == {
        b"a": PACK((ActiveSession(10, 7), msgspec.Raw(state))),
        b"b": tag + PACK((SuspensionMark(0, 30, is_lost=True), msgspec.Raw(state))),
        b"c": PACK((5, msgspec.Raw(state))),
        CLOCK + b"a": PACK([3, 4, 39]),
    }


def test_buffered_messages_are_refused_at_any_offset(tmp_path: Path) -> None:
    position = write(tmp_path / "old", {b"a": PACK((1, None)), HELD + b"0" * 24: b"x"})
    for place in (40, 400):
        move = Translation(position, "src.t", "new", place)
        with pytest.raises(NotTranslatable, match="t/0: messages are buffered"):
            translate_state(tmp_path / "old", [move], tmp_path / "new", generation=1, label="g1")
