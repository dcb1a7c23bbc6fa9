"""The position found in a mirrored log is the right position, or it is not proven."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lockstep.errors import KafkaError
from lockstep.features.copies.mirror import (
    MessageDigest,
    MirroredLog,
    NotProven,
    PositionEvidence,
    choose_checkpoint,
    find_place,
)
from lockstep.kafka.mirror_maker import OffsetSyncCheckpoint, decode_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

SIDE = 4
"""Messages on each side of a position here; at most as many have the same time."""


def digests(*messages: tuple[str, int]) -> tuple[MessageDigest, ...]:
    return tuple(MessageDigest(letter.encode(), at_ms) for letter, at_ms in messages)


def evidence(source: Sequence[MessageDigest], position: int, log_start: int = 0) -> PositionEvidence:
    applied = source[log_start:position][-SIDE:]
    return PositionEvidence("id", 0, position, log_start, tuple(applied), tuple(source[position : position + SIDE]))


def copy(source: Sequence[MessageDigest], start: int, end: int, *, first: int = 0, least: int = 0) -> MirroredLog:
    """Return a copy of some messages; `first` is the offset of the first message."""
    held = tuple(source[start:end])
    offsets = tuple(range(first, first + len(held)))
    return MirroredLog(first, first + len(held), first, least, offsets, held)


@st.composite
def sources(draw: st.DrawFn) -> tuple[MessageDigest, ...]:
    """Draw messages that are often equal: two letters, and up to four messages with the same time."""
    same = draw(st.lists(st.integers(1, SIDE), max_size=6))
    times = [at for at, count in enumerate(same) for _ in range(count)]
    return digests(*((draw(st.sampled_from("ab")), at) for at in times))


@given(sources(), st.data())
def test_a_place_that_is_found_is_the_right_one(source: tuple[MessageDigest, ...], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(source)))
    known_end = data.draw(st.integers(position, len(source)))
    log_start = data.draw(st.integers(0, position))
    known = evidence(source[:known_end], position, log_start)
    # Without evidence to compare, the copy is assumed to lack no message from the log start on.
    start = data.draw(st.integers(0, len(source) if known.applied or known.following else log_start))
    # Messages that expired before the copy are not copied.
    end = data.draw(st.integers(max(start, log_start), len(source)))
    # Messages missing from the copy have expired in it; otherwise it starts at the start of the log.
    first = data.draw(st.integers(1 if start > log_start else 0, 3))
    assume(start < end or start <= log_start)
    found = find_place(known, copy(source, start, end, first=first))
    if not isinstance(found, NotProven):
        assert start <= position
        assert found == first + position - start


def test_a_position_is_found_between_the_last_message_and_the_next() -> None:
    source = digests(*(("a", at) for at in range(20)))
    assert find_place(evidence(source, 10), copy(source, 0, 20)) == 10
    assert find_place(evidence(source, 10), copy(source, 5, 20, first=100)) == 105
    assert find_place(evidence(source, 10), copy(source, 10, 20)) == 0
    assert find_place(evidence(source, 10), copy(source, 0, 10)) == 10
    assert find_place(evidence(source, 0), copy(source, 0, 20)) == 0
    assert find_place(evidence(source[:0], 0), copy(source, 0, 20)) == 0
    late = find_place(evidence(source, 10), copy(source, 0, 9))
    assert isinstance(late, NotProven)
    assert "none of the 9 messages" in late.problem
    assert isinstance(find_place(evidence(source, 10), copy(source, 11, 20)), NotProven)


def test_messages_that_are_alike_prove_nothing_without_a_checkpoint() -> None:
    source = digests(*(("a", -1) for _ in range(20)))
    assert isinstance(find_place(evidence(source, 10), copy(source, 0, 20)), NotProven)
    assert isinstance(find_place(evidence(source[:10], 10), copy(source, 0, 10)), NotProven)
    once = digests(*((f"{number}", -1) for number in range(32)))
    source = (*once, *digests(("between", -1)), *once)
    known = PositionEvidence("id", 0, 65, 0, once, ())
    assert find_place(known, copy(source, 0, 65)) == NotProven(
        "the messages around it are alike at 2 offsets, such as 32 and 65"
    )
    assert find_place(known, copy(source, 0, 65, least=40)) == 65


def test_one_message_proves_a_place_only_where_both_logs_begin() -> None:
    source = digests(("a", 0), ("a", 0))
    assert find_place(evidence(source[:1], 1), copy(source, 0, 1)) == 1
    assert isinstance(find_place(evidence(source[:1], 1), copy(source, 1, 2, first=1)), NotProven)


def test_messages_that_were_copied_twice_are_left_to_the_class_or_prove_nothing() -> None:
    source = digests(*(("a", at) for at in range(20)))
    again = (*source[:12], *source[6:20])
    assert find_place(evidence(source, 10), copy(again, 0, len(again))) == 16
    assert find_place(evidence(source, 4), copy(again, 0, len(again))) == 4
    assert find_place(evidence(source, 8), copy(again, 0, len(again))) == 8
    whole = (*source[:14], *source[6:20])
    found = find_place(evidence(source, 10), copy(whole, 0, len(whole)))
    assert found == NotProven("the messages around it are alike at 2 offsets, such as 10 and 18")


def test_a_topic_whose_messages_have_all_expired_is_placed_by_its_checkpoint_alone() -> None:
    known = PositionEvidence("id", 0, 10, 10, (), ())
    empty = MirroredLog(7, 7, 7, 0, (), ())
    assert isinstance(find_place(known, empty), NotProven)
    assert find_place(known, MirroredLog(7, 7, 7, 5, (), ())) == 5
    left = digests(("a", 1))
    assert find_place(known, MirroredLog(7, 9, 7, 9, (8,), left)) == 9
    assert isinstance(find_place(known, MirroredLog(7, 9, 7, 8, (8,), left)), NotProven)
    assert isinstance(find_place(PositionEvidence("id", 0, 10, 4, (), ()), MirroredLog(7, 7, 7, 5, (), ())), NotProven)
    assert find_place(known, MirroredLog(0, 0, 0, 0, (), ())) == 0


KEY = b"\x00\x06adding\x00\x0bsource.data\x00\x00\x00\x02"
VALUE = b"\x00\x00" + (300).to_bytes(8, "big") + (41).to_bytes(8, "big") + b"\x00\x00"


def test_a_checkpoint_is_decoded_as_mirrormaker_writes_it() -> None:
    assert decode_checkpoint(KEY, VALUE) == OffsetSyncCheckpoint("adding", "source.data", 2, 300, 41)
    for key, value in ((KEY[:-1], VALUE), (KEY, VALUE[:9]), (KEY, b"\x00\x01" + VALUE[2:]), (b"\xff\xff", VALUE)):
        with pytest.raises(KafkaError, match="not as MirrorMaker 2 writes them"):
            decode_checkpoint(key, value)


def test_a_checkpoint_past_the_position_is_no_bound() -> None:
    known = PositionEvidence("id", 2, 299, 0, (), ())
    found = [decode_checkpoint(KEY, VALUE), OffsetSyncCheckpoint("adding", "source.data", 2, 200, 20)]
    assert choose_checkpoint(found, "source.data", known) == found[1]
    assert choose_checkpoint(found[:1], "source.data", known) is None
    assert choose_checkpoint(found, "data", known) is None
