"""Held-back messages whose session ends, is suspended or restarts; watermarks from a transform."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep import EventTime, FuzzyWindow, Once, Record, Stream
from lockstep.engine.executor.row_buffer import CHUNK_ROWS
from lockstep.testing import SentMessage, run
from tests.support.meter_stream import Close, Message, Meter, Meters, Read, Start, Total, meters, reordered

if TYPE_CHECKING:
    from collections.abc import Iterable


def of(key: str, message: Message) -> SentMessage[Message]:
    return SentMessage(value=message, key=key)


def test_an_end_frees_what_waits_behind_it() -> None:
    ran = run(reordered, Start(1, 0), Read(3, 1, 3), Close(2, 2), Start(1, 3), key="a").or_raise()
    assert [Total("end", None, "")] == ran.rows
    assert {"a": Meter()} == ran.states


def test_a_session_whose_snapshot_is_on_its_way_falls_silent_without_rows() -> None:
    ran = run(meters, of("a", Start(1, 0, more=True)), of("b", Start(1, 700))).or_raise()
    assert ran.rows == []
    assert {"b"} == set(ran.states)


class Unlucky(Meters):
    """Raises for a part of a snapshot at second 13."""

    def on_update(self, state: Meter, message: Message, record: Record) -> Iterable[Total]:
        if isinstance(message, Start) and message.second == 13:
            raise ValueError("thirteen")
        yield from super().on_update(state, message, record)


@pytest.mark.parametrize("refused", [2, 3])
def test_a_snapshot_of_which_a_message_is_refused_is_kept_whole_where_nobody_is_suspended(refused: int) -> None:
    """The session stays unknown; the next message starts it."""
    once = replace(meters, transform=Unlucky(), integrity=Once(keep_ids=10))
    parts: list[Message] = [Start(n, 13 if n == refused else 10, more=n < 3) for n in (1, 2, 3)]
    ran = run(once, *parts, Start(4, 14), Read(5, 15, 0), key="a").or_raise()
    assert {"a": Meter(0, [0])} == ran.states


class Believing(Meters):
    """Only readings of value 1 move the watermark."""

    def watermark(self, message: Message, record: Record) -> int | None:
        return message.second * 1_000_000 if isinstance(message, Read) and message.value == 1 else None


def test_only_what_the_transform_says_moves_the_watermark() -> None:
    """Times of other messages never count, in any chunking of the rows."""
    believing: Stream[Message, Meter, Total] = replace(
        meters, transform=Believing(), integrity=FuzzyWindow(lateness=timedelta(seconds=5)), event_time=EventTime()
    )
    unbelieved = [Read(2 + n, 50, 0) for n in range(CHUNK_ROWS)]
    ran = run(believing, Start(1, 0), *unbelieved, Read(CHUNK_ROWS + 2, 3, 0), Read(CHUNK_ROWS + 3, 4, 1), key="a")
    assert [Total("zero", 0, "")] * (CHUNK_ROWS + 1) == ran.or_raise().rows


def test_what_waited_before_a_snapshot_in_parts_is_freed_with_it() -> None:
    """A later number waits, a snapshot starts in parts, and neither is completed."""
    changed = Read(5, 2, 8)
    ran = run(reordered, Start(1, 0), Read(3, 1, 3), Start(1, 1, more=True), Read(3, 2, 4), changed, key="a")
    assert sorted(each.offset for each in ran.quarantine) == [1, 2, 3, 4]
