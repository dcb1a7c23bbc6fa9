"""Books made by hand, for cases that the recording lacks."""

from __future__ import annotations

import json
import zlib
from decimal import Decimal

import pytest

from assets.checksummed_books import LevelChange, checksummed_books
from lockstep.testing import run
from tests.streams.checksummed_books.plain_fold import Book, expected_rows

TIME = "1618678133.365913"


def snapshot(asks: int, bids: int) -> bytes:
    """Make asks 100.1 and up, bids 100.0 and down, of quantity 1.0 each."""
    part = {"as": [[f"{100 + n / 10:.1f}", "1.0", TIME] for n in range(1, asks + 1)]}
    part["bs"] = [[f"{100 - n / 10:.1f}", "1.0", TIME] for n in range(bids)]
    return json.dumps([1, part, "book-1000", "X/Y"]).encode()


def update(book: Book, *parts: dict[str, list[list[str]]]) -> bytes:
    """Make an update with the checksum computed by the plain fold."""
    unsummed = json.dumps([1, *parts[:-1], {**parts[-1], "c": ""}, "book-1000", "X/Y"]).encode()
    computed = book.take(unsummed).computed
    return unsummed.replace(b'"c": ""', f'"c": "{computed}"'.encode())


def row_of(side: str, price: str, quantity: str | None, previous: str | None) -> LevelChange:
    return LevelChange(side, Decimal(price), price, quantity, previous)


def told(*messages: bytes) -> list[LevelChange]:
    """Return the stream's rows after its first message; all rows must be those of the plain fold."""
    ran = run(checksummed_books, *messages, key="x_y").or_raise()
    rows = [(row.side, row.price_text, row.quantity, row.previous_quantity) for row in ran.rows]
    assert rows == [tuple(row[2:]) for row in expected_rows(messages)]
    return ran.rows[len(run(checksummed_books, messages[0], key="x_y").rows) :]


def test_what_falls_below_a_thousand_levels_is_removed_with_a_row() -> None:
    book = Book()
    first = snapshot(1000, 999)
    book.take(first)
    inserted = {"a": [["100.0", "3.0", TIME], ["99.9", "4.0", TIME]]}
    assert told(first, update(book, inserted)) == [
        row_of("ask", "100.0", "3.0", None),
        row_of("ask", "99.9", "4.0", None),
        row_of("ask", "199.9", None, "1.0"),
        row_of("ask", "200.0", None, "1.0"),
    ]


def test_a_full_side_stays_full_when_a_level_goes_and_another_comes() -> None:
    book = Book()
    first = snapshot(1000, 1000)
    book.take(first)
    change = {"b": [["100.0", "0.0", TIME], ["100.1", "2.0", TIME]]}
    assert [row.price_text for row in told(first, update(book, change))] == ["100.0", "100.1"]


def test_both_sides_of_an_update_are_applied_in_order() -> None:
    book = Book()
    first = snapshot(3, 3)
    book.take(first)
    change = update(book, {"a": [["100.1", "5.0", TIME]]}, {"b": [["100.1", "2.0", TIME]]})
    assert [row.side for row in told(first, change)] == ["ask", "bid"]


def test_a_level_that_is_published_again_is_set_like_any_other() -> None:
    book = Book()
    first = snapshot(3, 3)
    book.take(first)
    assert told(first, update(book, {"a": [["100.1", "1.0", TIME, "r"], ["100.4", "2.0", TIME, "r"]]})) == [
        row_of("ask", "100.4", "2.0", None)
    ]


def test_an_empty_side_has_no_part_in_the_checksum() -> None:
    book = Book()
    first = snapshot(0, 1)
    book.take(first)
    message = update(book, {"b": [["99.0", "0.5", TIME]]})
    assert json.loads(message)[1]["c"] == str(zlib.crc32(b"1000" + b"10" + b"990" + b"5"))
    assert len(told(first, message)) == 1


def test_a_snapshot_in_the_middle_sets_a_new_book_and_removes_levels() -> None:
    book = Book()
    first = snapshot(3, 3)
    second = snapshot(1, 1)
    book.take(second)
    assert told(first, second, update(book, {"a": [["100.1", "7.0", TIME]]})) == [
        row_of("ask", "100.2", None, "1.0"),
        row_of("ask", "100.3", None, "1.0"),
        row_of("bid", "99.8", None, "1.0"),
        row_of("bid", "99.9", None, "1.0"),
        row_of("ask", "100.1", "7.0", "1.0"),
    ]


def test_the_newest_level_tells_the_event_time() -> None:
    book = Book()
    first = snapshot(1, 1)
    book.take(first)
    levels = [["100.1", "2.0", "1618678134.000001"], ["100.2", "2.0", "1618678133.999999"]]
    folded = run(checksummed_books, first, update(book, {"a": levels}), key="x_y").folded
    assert [message.envelope and message.envelope.event_time_us for message in folded] == [
        1618678133_365913,
        1618678134_000001,
    ]


@pytest.mark.parametrize("price", ["100.1", "100.10", "0100.100", "1.001e2", "1001E-1"])
@pytest.mark.parametrize("zero", ["0.0", "0", "-0.000", "0E-8"])
def test_a_level_is_removed_by_every_spelling_of_its_price_and_of_zero(price: str, zero: str) -> None:
    book = Book()
    first = snapshot(3, 3)
    book.take(first)
    sent = update(book, {"a": [["100.1", "0.0", TIME]]}).replace(b'["100.1", "0.0"', f'["{price}", "{zero}"'.encode())
    assert run(checksummed_books, first, sent, key="x_y").or_raise().rows[-1:] == [row_of("ask", "100.1", None, "1.0")]
