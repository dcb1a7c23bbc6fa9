"""Faults at positions of a real book: the place and cause of each refusal, and faults that are not detected.

The oracle is the exchange's own checksum, compared by the plain fold: it shows whether a fault matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from assets.checksummed_books import Book, BookMessage, LevelChange, checksummed_books
from lockstep.testing import ACCEPT, RunResult, SentMessage, run
from tests.streams.checksummed_books.plain_fold import expected_rows, first_wrong

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstep.features.localdev.recordings import Recorded

BOOK = "eth_chf"
EACH = 20
"""Faults are put at one message of this many."""


class Refused(NamedTuple):
    """The place and the cause of a run's end."""

    at: int
    cause: str
    expected: str | None
    found: str | None


@pytest.fixture(scope="module")
def values(recorded: Mapping[str, tuple[Recorded, ...]]) -> list[bytes]:
    """The messages of one book: a snapshot and 317 updates."""
    return [message.value for message in recorded[BOOK]]


def test_without_a_fault_nothing_is_refused(values: list[bytes]) -> None:
    ran = run(checksummed_books, *values, key=BOOK)
    assert ran.verdicts == [ACCEPT] * len(values)
    assert plain(ran) == expected_rows(values)


def test_a_lost_update_is_refused_exactly_where_the_exchange_first_disagrees(values: list[bytes]) -> None:
    refusals = [compared([*values[:at], *values[at + 1 :]]) for at in range(1, len(values), EACH)]
    assert sum(refusal is not None for refusal in refusals) > len(refusals) // 2


def test_swapped_updates_are_refused_exactly_where_the_exchange_first_disagrees(values: list[bytes]) -> None:
    positions = range(1, len(values) - 1, EACH)
    refusals = [compared([*values[:at], values[at + 1], values[at], *values[at + 2 :]]) for at in positions]
    assert sum(refusal is not None for refusal in refusals) > len(refusals) // 2


def test_an_update_that_comes_again_later_is_refused_where_the_exchange_first_disagrees(values: list[bytes]) -> None:
    positions = range(1, len(values) - 30, EACH)
    refusals = [compared([*values[: at + 30], values[at], *values[at + 30 :]]) for at in positions]
    assert sum(refusal is not None for refusal in refusals) > len(refusals) // 2


def test_an_update_that_comes_twice_in_a_row_changes_nothing(values: list[bytes]) -> None:
    """It sets the same quantities again: the checksum holds, the book is right, and no row is emitted."""
    ran = run(checksummed_books, *values[:50], values[49], *values[50:], key=BOOK)
    assert (ran.finding, ran.folded[50].rows) == (None, ())
    assert ran.states == run(checksummed_books, *values, key=BOOK).states


def test_a_changed_digit_of_a_best_quantity_is_refused_at_once(values: list[bytes]) -> None:
    at, level = first_best_level(values)
    changed = values[at].replace(level.encode(), f"9{level[1:]}".encode(), 1)
    refusal = compared([*values[:at], changed, *values[at + 1 :]])
    assert refusal is not None
    assert (refusal.at, refusal.cause) == (at, "checksum")


def test_a_changed_checksum_is_refused_at_once(values: list[bytes]) -> None:
    told = values[7].rpartition(b'"c":"')[2].partition(b'"')[0]
    refusal = compared([*values[:7], values[7].replace(told, b"12345"), *values[8:]])
    assert refusal == Refused(7, "checksum", told.decode(), "12345")


def test_an_update_without_a_checksum_is_refused(values: list[bytes]) -> None:
    start, _, rest = values[7].rpartition(b',"c":"')
    ran = run(checksummed_books, *values[:7], start + b"}" + rest.partition(b"}")[2], key=BOOK)
    assert ran.verdicts[-1].cause == "checksum"
    assert ran.verdicts[-1].found == "None"


@pytest.mark.parametrize("at", [0, 1, 200])
def test_truncated_json_is_undecodable(at: int, values: list[bytes]) -> None:
    ran = run(checksummed_books, *values[:at], values[at][:-9], *values[at + 1 :], key=BOOK)
    assert (len(ran.folded) - 1, ran.verdicts[-1].cause) == (at, "undecodable")


@pytest.mark.parametrize("odd", [b'"r","?"', b'"depth":5,"c"'])
def test_what_is_not_declared_is_undecodable_and_never_left_out(odd: bytes, values: list[bytes]) -> None:
    known = b'"]' if odd.startswith(b'"r"') else b'"c"'
    replaced = values[1].replace(known, b'",' + odd + b"]" if known == b'"]' else odd, 1)
    ran = run(checksummed_books, values[0], replaced, key=BOOK)
    assert ran.verdicts[-1].cause == "undecodable"


def test_a_changed_key_and_a_missing_snapshot_are_unknown_sessions(values: list[bytes]) -> None:
    strayed = run(checksummed_books, *values[:9], SentMessage(value=values[9], key="eth_eur"), *values[10:], key=BOOK)
    assert (len(strayed.folded) - 1, strayed.verdicts[-1].cause) == (9, "unknown session")
    beheaded = run(checksummed_books, *values[1:], key=BOOK)
    assert (len(beheaded.folded) - 1, beheaded.verdicts[-1].cause) == (0, "unknown session")


def test_the_same_recording_under_a_new_key_is_a_session_of_its_own(values: list[bytes]) -> None:
    again: list[SentMessage[BookMessage]] = [SentMessage(value=value, key="eth_chf-2") for value in values]
    ran = run(checksummed_books, *values, *again, key=BOOK).or_raise()
    assert ran.states[BOOK] == ran.states["eth_chf-2"]
    assert len(ran.rows) == 2 * len(expected_rows(values))


def test_a_loss_below_the_ten_best_is_seen_only_when_it_comes_up(values: list[bytes]) -> None:
    """The limit of the evidence: the checksum covers ten levels of each side, the book contains a thousand."""
    whole = run(checksummed_books, *values, key=BOOK)
    unseen = []
    for at in range(1, len(values), EACH):
        lossy = run(checksummed_books, *values[:at], *values[at + 1 :], key=BOOK)
        if lossy.finding is None and lossy.states != whole.states:
            unseen.append(at)
            assert best(lossy.states[BOOK]) == best(whole.states[BOOK])
    assert unseen


def compared(values: Sequence[bytes]) -> Refused | None:
    """Run the stream over messages; its refusal must be that of the exchange's checksums."""
    ran = run(checksummed_books, *values, key=BOOK)
    wrong = first_wrong(values)
    right = values[: wrong[0]] if wrong else values
    refused = None
    if ran.finding is not None:
        verdict = ran.verdicts[-1]
        refused = Refused(len(ran.folded) - 1, verdict.cause, verdict.expected, verdict.found)
    assert refused == (None if wrong is None else Refused(wrong[0], "checksum", wrong[1], wrong[2]))
    assert plain(ran) == expected_rows(right)
    return refused


def plain(ran: RunResult[Book, LevelChange]) -> list[tuple[object, ...]]:
    """Return the rows of a run as the plain fold writes them."""
    return [
        (message.offset, number, row.side, row.price_text, row.quantity, row.previous_quantity)
        for message in ran.folded
        for number, row in enumerate(message.rows)
    ]


def first_best_level(values: Sequence[bytes]) -> tuple[int, str]:
    """Return the place of an update that sets one of the ten best levels, and the quantity that it sets."""
    for at, message in enumerate(run(checksummed_books, *values[:200], key=BOOK).folded[1:], 1):
        book = run(checksummed_books, *values[: at + 1], key=BOOK).states[BOOK] if message.rows else None
        if book is not None and message.rows[0].quantity in {quantity for _, quantity in best(book)}:
            return at, str(message.rows[0].quantity)
    raise AssertionError("no update of a best level")


def best(book: Book) -> list[tuple[str, str]]:
    """Return price and quantity of the levels that the checksum covers."""
    return [(level.price_text, level.quantity) for _, level, _ in book.ask[:10] + book.bid[:10]]
