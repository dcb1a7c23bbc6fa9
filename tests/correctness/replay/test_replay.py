"""The rows of a session replay to exactly its state, at every batch, for any feed and any split."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import Kind
from lockstep.testing import Idle, SentMessage, run
from tests.correctness.replay.replaying import CLASSES, Book, OverridingBook, Sent, UnnumberedBook, make_book, replay

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.testing import RunResult

SIDES = ["ask", "bid"]
PRICES = [Decimal(text) for text in ("1.5", "1.50", "0.000001", "1E-6", "2", "2.0", "10")]
SIZES = [None, 0.0, -0.0, 1.0, 1.0, 2.5, float("inf")]
NOTES = [None, "a", ""]
LEVEL = st.tuples(st.sampled_from(SIDES), st.sampled_from(PRICES), st.sampled_from(SIZES), st.sampled_from(NOTES))
LEVELS = st.lists(LEVEL, max_size=4)
STEPS = ["next"] * 12 + ["gap", "repeat", "back", "restart"]
KINDS = [Kind.UPDATE] * 5 + [Kind.SNAPSHOT] * 3 + [Kind.SNAPSHOT_PART] * 2 + [Kind.END, Kind.SKIP]
MESSAGES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(KINDS),
            LEVELS,
            st.sampled_from(STEPS),
            st.sampled_from([0, 1, 1, 3, 70]),
        ),
        st.sampled_from(["garbage", "idle", "refused"]),
    ),
    min_size=1,
    max_size=14,
)
REFUSED: list[tuple[str, Decimal, float | None, str | None]] = [("ask", Decimal("1e30"), 1.0, None)]
"""A level that no row can hold: the session is suspended under a class that suspends."""
_BITS = msgspec.msgpack.Encoder()


def make_feed(drawn: list[Any]) -> list[Any]:
    """Return the messages of a test: two sessions, with mostly consecutive numbers."""
    numbers = {"a": 0, "b": 0}
    seconds = 100
    feed = list[Any]()
    for each in drawn:
        if each == "garbage":
            feed.append(SentMessage(value=b"{", key="a"))
        elif each == "refused":
            feed.append(SentMessage(value=Sent(Kind.UPDATE, numbers["a"], REFUSED, seconds), key="a"))
        elif each == "idle":
            feed.append(Idle(seconds * 1_000_000))
        else:
            session, kind, levels, step, later = each
            seconds += later
            numbers[session] += {"next": 1, "gap": 2, "repeat": 0, "back": -1, "restart": 1}[step]
            message = Sent(kind, numbers[session], levels, seconds, restarts_sequence=step == "restart")
            feed.append(SentMessage(value=message, key=session))
            if kind is Kind.END:
                numbers[session] = 0
    return feed


def check_replay(ran: RunResult[Any, Any]) -> int:
    """Compare the rows with all states, to the last bit; return the number of compared rows."""
    states = {
        session: {key: (level.size, level.note) for key, level in state.items()}
        for session, state in ran.states.items()
    }
    rows = {
        session: {key: (row.size, row.note) for key, row in table.items()}
        for session, table in replay(ran.proven, Book.key, Book.removed).items()
    }
    held = {session: table for session, table in states.items() if table}
    assert rows == held
    for session, table in held.items():
        for key, value in table.items():
            assert _BITS.encode(value) == _BITS.encode(rows[session][key])  # -0.0 is not 0.0
    return sum(map(len, held.values()))


def check_feed(stream: AnyStream, feed: list[Any], split: int) -> None:
    """Check the replay after each message, and in batches with a crash after each."""
    for length in range(1, len(feed) + 1):
        check_replay(run(stream, *feed[:length]))
    check_replay(run(stream, *feed, split=split))


USUAL_OVERRIDING = {"strict, suspends", "ordered, first message", "window, reordered"}
OVERRIDING = [
    pytest.param(
        name, OverridingBook(), marks=() if name in USUAL_OVERRIDING else pytest.mark.slow, id=f"overriding-{name}"
    )
    for name in CLASSES
]
READY = [pytest.param(name, Book(), id=f"ready-{name}") for name in CLASSES]
ORDERED_BY_TIME = [name for name in CLASSES if "window, reordered" in name]
FEEDS = {"drawn": MESSAGES, "split": st.sampled_from([1, 2, 3])}
EXAMPLES = max(12, settings().max_examples // 5)
EXAMPLES_DEEP = max(200, settings().max_examples)


@pytest.mark.parametrize(("integrity", "fold"), [*READY, *OVERRIDING])
@settings(max_examples=EXAMPLES)
@given(**FEEDS)
def test_rows_replay_to_the_state_behind_each_message(integrity: str, fold: Book, drawn: list[Any], split: int) -> None:
    check_feed(make_book(integrity, fold), make_feed(drawn), split)


@pytest.mark.parametrize("integrity", ORDERED_BY_TIME)
@settings(max_examples=EXAMPLES)
@given(**FEEDS)
def test_rows_replay_if_messages_are_put_in_order_by_time(integrity: str, drawn: list[Any], split: int) -> None:
    check_feed(make_book(integrity, UnnumberedBook()), make_feed(drawn), split)


def put(session: str, kind: Kind, *levels: tuple[str, str, float | None], later: int = 1) -> Any:
    """Return a message of a feed."""
    return session, kind, [(side, Decimal(price), size, None) for side, price, size in levels], "next", later


NAMED: dict[str, list[Any]] = {
    "a second snapshot changes, removes and adds": [
        put("a", Kind.SNAPSHOT, ("bid", "1", 1.0), ("bid", "2", 2.0)),
        put("a", Kind.UPDATE, ("bid", "1", 5.0)),
        put("a", Kind.SNAPSHOT, ("bid", "2", 9.0), ("bid", "10", 7.0)),
        put("a", Kind.UPDATE, ("bid", "10", None)),
    ],
    "other spellings of the same values": [
        put("a", Kind.SNAPSHOT, ("bid", "1.5", 0.0), ("ask", "0.000001", 1.0)),
        put("a", Kind.SNAPSHOT, ("bid", "1.50", -0.0), ("ask", "1E-6", 1.0)),
    ],
    "an end, and the session again": [
        put("a", Kind.SNAPSHOT, ("bid", "1.5", 1.0), ("ask", "2", 1.0)),
        put("a", Kind.END),
        put("a", Kind.SNAPSHOT, ("ask", "2", 1.0)),
    ],
    "an idle timeout": [put("a", Kind.SNAPSHOT, ("bid", "1.5", 1.0)), put("b", Kind.SNAPSHOT, later=70)],
    "a suspension, and the session from its first message": [
        put("a", Kind.SNAPSHOT, ("bid", "1.5", 1.0), ("ask", "2", 1.0)),
        put("b", Kind.SNAPSHOT, ("bid", "1.5", 1.0), later=10),
        "refused",
        put("a", Kind.UPDATE, ("ask", "2", 3.0)),
        put("a", Kind.UPDATE, ("bid", "10", 3.0), later=10),
    ],
    "a key twice in a snapshot": [put("a", Kind.SNAPSHOT, ("bid", "1.5", 1.0), ("bid", "1.5", None))],
    "a snapshot in parts over a table": [
        put("a", Kind.SNAPSHOT, ("bid", "1.5", 1.0), ("ask", "2", 1.0)),
        put("a", Kind.SNAPSHOT_PART, ("bid", "1.5", 1.0)),
        put("a", Kind.SNAPSHOT_PART, ("bid", "10", 1.0)),
        put("a", Kind.SNAPSHOT, ("ask", "10", 1.0)),
    ],
}


@pytest.mark.parametrize("integrity", CLASSES)
@pytest.mark.parametrize(
    "fold", [Book(), OverridingBook(), UnnumberedBook()], ids=["ready", "overriding", "unnumbered"]
)
@pytest.mark.parametrize("named", NAMED)
def test_a_named_feed_replays(integrity: str, fold: Book, named: str) -> None:
    if fold.numbered or not integrity.startswith(("strict", "once")):
        check_feed(make_book(integrity, fold), make_feed(NAMED[named]), 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("integrity", "fold"), [*READY, *OVERRIDING])
@settings(max_examples=EXAMPLES_DEEP)
@given(**FEEDS)
def test_rows_of_many_more_feeds_replay_to_the_state(integrity: str, fold: Book, drawn: list[Any], split: int) -> None:
    check_feed(make_book(integrity, fold), make_feed(drawn), split)
