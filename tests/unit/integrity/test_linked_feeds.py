"""Linked feeds, generated and recorded: complete feeds pass, and each single fault is refused at its place."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep import Envelope, Link, Linked
from lockstep.features.localdev.recordings import Recorded, RecordedKind, read_recorded_days, to_received, to_sent
from tests.support.envelopes import refused_at, snapshot, update

RECORDINGS = Path(__file__).parents[2] / "recordings" / "binance_l2"
BOOKS = ("spot_btcusdt", "spot_ethusdt", "cm_btcusd_perp")


@some.composite
def feeds(draw: some.DrawFn) -> list[Envelope]:
    """Draw a snapshot and its updates in one of the three link styles; the first update may overlap."""
    style = draw(some.sampled_from(["spot", "futures", "named"]))
    last = draw(some.integers(1_000, 2**40))
    places = [snapshot(link=Link(last))]
    overlap = draw(some.integers(0, 50)) if style != "named" else 0
    previous = last - overlap
    for number in range(draw(some.integers(1, 20))):
        lowest = last - previous + 1 if number == 0 else 1  # the first update ends after the snapshot
        until = previous + draw(some.integers(lowest, lowest + 40))
        places.append(update(link=link_of(style, previous, until)))
        previous = until
    return places


def link_of(style: str, previous: int, last: int) -> Link:
    if style == "spot":
        return Link(last, first=previous + 1)
    return Link(last, previous=previous, first=previous + 1 if style == "futures" else None)


@given(feeds())
def test_a_whole_feed_is_accepted(feed: list[Envelope]) -> None:
    assert refused_at(Linked(), feed) is None


@given(feeds(), some.data())
def test_a_removed_message_is_missed_at_the_very_next_one(feed: list[Envelope], data: some.DataObject) -> None:
    removed = data.draw(some.integers(0, len(feed) - 2))
    del feed[removed]
    assert place_and_cause(feed) == (removed, "unknown session" if removed == 0 else "gap")


@given(feeds(), some.data())
def test_a_repeated_message_is_refused_where_it_repeats(feed: list[Envelope], data: some.DataObject) -> None:
    repeated = data.draw(some.integers(0, len(feed) - 1))
    again = data.draw(some.integers(max(2, repeated + 1), len(feed)))  # an immediate repeat of the snapshot is harmless
    feed.insert(again, feed[repeated])
    assert place_and_cause(feed) == (again, "repeat" if again == repeated + 1 else "sequence goes back")


@given(feeds(), some.data())
def test_swapped_messages_are_refused_at_the_first_of_them(feed: list[Envelope], data: some.DataObject) -> None:
    swapped = data.draw(some.integers(0, len(feed) - 2))
    feed[swapped], feed[swapped + 1] = feed[swapped + 1], feed[swapped]
    assert place_and_cause(feed) == (swapped, "unknown session" if swapped == 0 else "gap")


@given(feeds(), some.data())
def test_a_snapshot_may_come_anywhere_with_the_last_id(feed: list[Envelope], data: some.DataObject) -> None:
    after = data.draw(some.integers(1, len(feed)))
    link = feed[after - 1].link
    assert link is not None
    feed.insert(after, snapshot(link=Link(link.last)))
    assert refused_at(Linked(), feed) is None


@pytest.mark.parametrize("book", BOOKS)
def test_a_recorded_book_is_accepted_over_midnight(book: str) -> None:
    assert refused_at(Linked(), recorded(book)) is None


@pytest.mark.parametrize("book", BOOKS)
def test_the_second_day_alone_is_refused_for_want_of_a_snapshot(book: str) -> None:
    second = to_sent(read_recorded_days(RECORDINGS, book)[1:])
    assert place_and_cause([placed(message) for message in second.messages]) == (0, "unknown session")


@pytest.mark.parametrize("book", BOOKS)
def test_a_book_as_received_is_refused_because_its_snapshot_comes_late(book: str) -> None:
    received = to_received(read_recorded_days(RECORDINGS, book))
    assert received[0].kind is RecordedKind.DIFFERENCE
    assert place_and_cause([placed(message) for message in received]) == (0, "unknown session")


@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("where", [2, 3, 100, 1000])
def test_each_single_fault_in_a_recorded_book_is_refused_at_its_place(book: str, where: int) -> None:
    whole = recorded(book)
    removed = [*whole[:where], *whole[where + 1 :]]
    repeated = [*whole[: where + 1], *whole[where:]]
    swapped = [*whole[:where], whole[where + 1], whole[where], *whole[where + 2 :]]
    assert place_and_cause(removed) == (where, "gap")
    assert place_and_cause(repeated) == (where + 1, "repeat")
    assert place_and_cause(swapped) == (where, "gap")


@cache
def recorded(book: str) -> tuple[Envelope, ...]:
    return tuple(placed(message) for message in to_sent(read_recorded_days(RECORDINGS, book)).messages)


def placed(message: Recorded) -> Envelope:
    link = Link(message.last_id, first=message.first_id, previous=message.previous_id)
    return snapshot(link=link) if message.kind is RecordedKind.SNAPSHOT else update(link=link)


def place_and_cause(places: list[Envelope] | tuple[Envelope, ...]) -> tuple[int, str] | None:
    found = refused_at(Linked(), places)
    return found and (found[0], found[1].cause)
