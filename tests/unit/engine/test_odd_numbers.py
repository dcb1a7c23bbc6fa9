"""Numbers and times of other types than int are refused by name, the same for every split."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep import EventTime, FuzzyWindow, NoIntegrity, Once, Ordered, Sequence, SessionStart, Strict, Suspend
from lockstep.testing import SentMessage, Split, run
from tests.support.minute_stream import Totals, Value, totals
from tests.support.odd_numbers import FlagNumbers, FloatNumbers, FloatTimes, FloatWatermark, LaterFloats

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass

FIRST = SessionStart.FIRST_MESSAGE
WINDOW = FuzzyWindow(lateness=timedelta(seconds=30), session_start=FIRST)
SENT = [SentMessage(value=Value(second, 1, number), key="a") for number, second in enumerate((100, 110, 120, 130))]


CLASSES: dict[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "ordered": Ordered(session_start=FIRST),
    "strict": Strict(evidence=Sequence(), session_start=FIRST, on_violation=Suspend()),
    "window": WINDOW,
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("fold", [FloatNumbers(), FlagNumbers()], ids=["float", "flag"])
def test_a_number_of_another_type_is_refused_whatever_the_split(name: str, fold: Totals) -> None:
    """Otherwise `Strict` would accept 2.0 as 2 within a batch, and not know the session in the next batch."""
    stream = totals("values", CLASSES[name], fold)
    whole = run(stream, *SENT)
    assert whole == run(stream, *SENT, split=Split(1))
    assert whole.rows == []
    assert len(whole.quarantine) == len(SENT)
    assert "of a message is of type" in str(whole.quarantine[0])


def test_a_float_that_follows_is_the_same_number_whatever_the_split() -> None:
    """If the session had no number in the next batch, a gap after the float would not be seen."""
    stream = totals("values", CLASSES["strict"], LaterFloats())
    behind_a_gap = SentMessage(value=Value(140, 1, 9), key="a")
    whole = run(stream, *SENT, behind_a_gap)
    assert whole == run(stream, *SENT, behind_a_gap, split=Split(1))
    assert len(whole.rows) == len(SENT) - 1
    assert [each.cause for each in whole.quarantine] == ["gap"]


@pytest.mark.parametrize("integrity", [Once(keep_ids=9), WINDOW], ids=["once", "window"])
@pytest.mark.parametrize(
    ("fold", "said"),
    [
        (FloatTimes(), "Envelope.event_time_us = 100000000.0 is of type float, not int"),
        (FloatWatermark(), "watermark gave 100000000.0: microseconds"),
    ],
    ids=["time", "watermark"],
)
def test_a_time_of_another_type_is_refused_whatever_the_split(
    integrity: IntegrityClass, fold: Totals, said: str
) -> None:
    """Otherwise the clock of its session could not be loaded, and its messages in later batches would be refused."""
    stream = totals("values", integrity, fold)
    whole = run(stream, *SENT)
    assert whole == run(stream, *SENT, split=Split(1))
    assert len(whole.quarantine) == len(SENT)
    assert said in str(whole.quarantine[0])


def test_a_time_beyond_the_calendar_moves_no_watermark() -> None:
    """Not even with any skew allowed: the ledger cannot store such a watermark, and a restart would forget it."""
    stream = replace(totals("values", WINDOW), event_time=EventTime(max_skew=timedelta.max))
    nanoseconds = SentMessage(value=Value(1_700_000_000_000, 1, 9), key="b")
    whole = run(stream, nanoseconds, *SENT)
    assert whole == run(stream, nanoseconds, *SENT, split=Split(1))
    assert [each.cause for each in whole.quarantine] == ["value not storable"]
    assert len(whole.rows) == len(SENT) - 1
