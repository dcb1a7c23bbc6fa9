"""A value that a reader of the table could not return, and no other, is refused under every class with one cause."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep import (
    Envelope,
    FuzzyWindow,
    InitialState,
    NoIntegrity,
    Once,
    Ordered,
    Record,
    Sequence,
    SessionStart,
    Stream,
    Strict,
    Suspend,
    Topics,
    Transform,
)
from lockstep.integrity.strict import LogOnly
from lockstep.table import row_encoder
from lockstep.table.row_encoder import RowRejected, RowsBuilder
from lockstep.testing import run
from lockstep.verify.rows import find_unfit
from tests.support.native import needs_extension
from tests.support.row_table import proof_of

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass

CAUSE = "value not storable"
FIRST = SessionStart.FIRST_MESSAGE
CLASSES: dict[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=9),
    "ordered": Ordered(session_start=FIRST),
    "log only": Strict(evidence=LogOnly(), session_start=FIRST, on_violation=Suspend()),
    "sequence": Strict(evidence=Sequence(), session_start=FIRST, on_violation=Suspend()),
    "window": FuzzyWindow(lateness=timedelta(days=36_000), session_start=FIRST),
}

FIRST_US, LAST_US = -62_135_424_000_000_000, 253_402_300_799_999_999
"""0001-01-03 and the last microsecond of 9999, in UTC."""
SECOND_US = 1_000_000
PLACES = ("none", "column", "optional", "struct", "list", "map", "deep")
Place = Literal["none", "column", "optional", "struct", "list", "map", "deep"]


class Inner(msgspec.Struct):
    at: datetime | None
    more: list[datetime] = []


class Row(msgspec.Struct):
    """Times in each place of a row."""

    number: int
    at: datetime
    optional: datetime | None = None
    struct: Inner | None = None
    items: list[datetime | None] = []
    named: dict[str, datetime] = {}
    deep: dict[str, list[Inner]] = {}


class Reading(msgspec.Struct):
    """A message.

    Attributes:
        number: Number in its session, of which it is the only message.
        time_us: Event time.
        local: Local time.
        offset_minutes: Offset of the local time from UTC.
        place: The place of this time in the row.
        rows: Number of rows that the message emits.
    """

    number: int
    time_us: int | None
    local: datetime
    offset_minutes: int
    place: Place
    rows: int

    @property
    def at(self) -> datetime:
        """Return the time with its zone."""
        return self.local.replace(tzinfo=timezone(timedelta(minutes=self.offset_minutes)))

    @property
    def utc_us(self) -> int:
        """Compute the time in microseconds since 1970 by plain arithmetic."""
        since = self.local - datetime(1, 1, 1)  # noqa: DTZ001  # a time without a zone is intended
        local_us = (since.days * 86_400 + since.seconds) * SECOND_US + since.microseconds - 62_135_596_800 * SECOND_US
        return local_us - self.offset_minutes * 60 * SECOND_US

    @property
    def is_readable(self) -> bool:
        """Whether every reader can return the written values."""
        return is_readable(self.time_us) and (self.place == "none" or not self.rows or is_readable(self.utc_us))


def is_readable(time_us: int | None) -> bool:
    """Whether every reader can return a time."""
    return time_us is None or FIRST_US <= time_us <= LAST_US


PLAIN = datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: UP017  # compared with other zones of this kind


def make_row(reading: Reading) -> Row:
    row = Row(reading.number, PLAIN)
    match reading.place:
        case "column":
            row.at = reading.at
        case "optional":
            row.optional = reading.at
        case "struct":
            row.struct = Inner(reading.at)
        case "list":
            row.items = [None, reading.at]
        case "map":
            row.named = {"plain": PLAIN, "odd": reading.at}
        case "deep":
            row.deep = {"k": [Inner(None), Inner(PLAIN, [reading.at])]}
        case "none":
            pass
    return row


class Readings(Transform[Reading, int, Row]):
    """Each message is a session."""

    def envelope(self, message: Reading, record: Record) -> Envelope:
        return Envelope(str(record.offset), sequence=message.number, event_time_us=message.time_us)

    def on_snapshot(self, message: Reading, record: Record, previous: int | None) -> InitialState[int, Row]:
        return InitialState(0, list(self.on_update(0, message, record)))

    def on_update(self, state: int, message: Reading, record: Record) -> Iterable[Row]:
        for _ in range(message.rows):
            yield make_row(message)


def near(bound: int, least: int = -(2**63), greatest: int = 2**63 - 1) -> st.SearchStrategy[int]:
    return st.integers(max(least, bound - 3), min(greatest, bound + 3))


EVENT_TIMES = st.one_of(
    st.none(),
    st.integers(0, 3_000_000_000 * SECOND_US),
    st.integers(-(2**63), 2**63 - 1),
    near(FIRST_US),
    near(LAST_US),
    near(-(2**63)),
    near(2**63 - 1),
)
LOCAL = st.one_of(
    st.datetimes(),
    st.datetimes(max_value=datetime(1, 1, 5)),  # noqa: DTZ001
    st.datetimes(min_value=datetime(9999, 12, 30)),  # noqa: DTZ001
)
READINGS = st.builds(
    Reading,
    number=st.just(1),
    time_us=EVENT_TIMES,
    local=LOCAL,
    offset_minutes=st.integers(-1439, 1439) | st.sampled_from([0, 14 * 60, -12 * 60]),
    place=st.sampled_from(PLACES),
    rows=st.integers(0, 2),
)


def readings(integrity: IntegrityClass) -> Stream[Reading, int, Row]:
    return Stream(name="readings", topics=Topics(pattern="readings"), transform=Readings(), integrity=integrity)


MIDNIGHT = datetime(2026, 1, 1)  # noqa: DTZ001


def of_event(time_us: int, rows: int = 1) -> Reading:
    return Reading(1, time_us, MIDNIGHT, 0, "none", rows)


@pytest.mark.parametrize("name", CLASSES)
@given(messages=st.lists(READINGS, min_size=1, max_size=8))
@example(messages=[of_event(1_700_000_000_000_000_000), of_event(2**63 - 1, 0), of_event(-(2**63))])
@example(messages=[Reading(1, None, datetime.min, 14 * 60, "column", 1)])  # noqa: DTZ901
@example(messages=[Reading(1, None, datetime.max, -12 * 60, "deep", 1)])  # noqa: DTZ901
def test_a_time_that_readers_cannot_return_is_refused_with_one_cause(name: str, messages: list[Reading]) -> None:
    ran = run(readings(CLASSES[name]), *messages)
    absurd = {each.offset for each in ran.quarantine if each.cause == "absurd event time"}
    judged = [(at, message) for at, message in enumerate(messages) if at not in absurd]
    refused = {each.offset: each.cause for each in ran.quarantine if each.offset not in absurd}
    assert refused == {at: CAUSE for at, message in judged if not message.is_readable}
    accepted = [message for _, message in judged if message.is_readable]
    assert [each.row for each in ran.proven] == [make_row(each) for each in accepted for _ in range(each.rows)]
    assert all(is_readable(messages[at].time_us) for at in absurd)
    assert not absurd or name == "window"


@needs_extension
@given(message=READINGS)
def test_rows_are_refused_alike_without_the_extension(message: Reading) -> None:
    rows = [make_row(message)] * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_encoder, "extension", None)
        general = RowsBuilder(Row)
    assert build(RowsBuilder(Row), rows) == build(general, rows)


def build(builder: RowsBuilder, rows: list[Row]) -> object:
    """Return the rows as stored, or the refusal."""
    try:
        return builder.build(rows, proof_of(len(rows)))
    except RowRejected as refused:
        return str(refused)


@given(message=READINGS)
def test_the_second_reading_of_the_proof_refuses_the_same_rows(message: Reading) -> None:
    is_fit = message.place == "none" or is_readable(message.utc_us)
    assert find_unfit([make_row(message)], Row) is not is_fit
