"""Records without a value are messages if the message type has None, as in a topic of database changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import (
    Envelope,
    FuzzyWindow,
    Halt,
    InitialState,
    Kind,
    NoIntegrity,
    Ordered,
    Record,
    SessionStart,
    Stream,
    Strict,
    Suspend,
    Topics,
    Transform,
)
from lockstep import Sequence as Numbers
from lockstep.decoders import Bytes
from lockstep.engine.driver.loop import RunOutcome
from lockstep.testing import SentMessage, run
from lockstep.verify.verify import verify_stream
from tests.support.plain_reader import named_files, read_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


class Change(msgspec.Struct):
    """A changed row of a database: the key's new content."""

    amount: int
    version: int | None = None


class Account(msgspec.Struct):
    """The current row."""

    amount: int


class Balance(msgspec.Struct):
    """The changed row; None after its deletion."""

    amount: int | None


class Accounts(Transform[Change | None, Account, Balance]):
    """Has a session per key, which a tombstone ends; raises at negative amounts."""

    def envelope(self, message: Change | None, record: Record) -> Envelope:
        """Return the key as the session."""
        session = record.key_text
        if message is None:
            return Envelope(session, Kind.END)
        return Envelope(session, Kind.UPDATE, sequence=message.version)

    def on_snapshot(
        self, message: Change | None, record: Record, previous: Account | None
    ) -> InitialState[Account, Balance]:
        """Start a session with the first change of a key."""
        account = Account(0)
        return InitialState(account, self.on_update(account, message, record))

    def on_update(self, state: Account, message: Change | None, record: Record) -> Iterable[Balance]:
        """Return a row per change."""
        assert message is not None
        state.amount = message.amount
        if message.amount < 0:
            raise ValueError("a debt")
        yield Balance(message.amount)

    def on_end(self, state: Account) -> Iterable[Balance]:
        """Return a row for the deletion."""
        yield Balance(None)


class Failing(Accounts):
    """Raises at each tombstone."""

    def on_end(self, state: Account) -> Iterable[Balance]:
        """Raise instead of returning a row."""
        raise ValueError("not deleted")


class Sizes(Transform[bytes | None, int, Balance]):
    """Sizes of raw values; a tombstone is skipped."""

    def envelope(self, message: bytes | None, record: Record) -> Envelope:
        """Return the key as the session."""
        return Envelope(record.key_text, Kind.SKIP if message is None else Kind.UPDATE)

    def on_snapshot(self, message: bytes | None, record: Record, previous: int | None) -> InitialState[int, Balance]:
        """Return the size."""
        return InitialState(0, self.on_update(0, message, record))

    def on_update(self, state: int, message: bytes | None, record: Record) -> Iterable[Balance]:
        """Return the size."""
        yield Balance(len(message or b""))


FIRST = SessionStart.FIRST_MESSAGE
ORDERED = Ordered(session_start=FIRST)
LATENESS = timedelta(hours=1)


def accounts(pattern: str, integrity: IntegrityClass = ORDERED) -> Stream[Change | None, Account, Balance]:
    return Stream(name="accounts", topics=Topics(pattern=pattern), transform=Accounts(), integrity=integrity)


def change(amount: int, version: int | None = None) -> bytes:
    return msgspec.json.encode(Change(amount, version))


def log(*, numbered: bool) -> list[tuple[str, bytes | None]]:
    """Return two keys: the first is deleted twice and created again, the second continues."""
    numbers = [1, 1, 2, 1, 2] if numbered else [None] * 5
    first, other, second, again, last = numbers
    return [
        ("a", change(1, first)),
        ("b", change(5, other)),
        ("a", change(2, second)),
        ("a", None),
        ("a", None),
        ("a", change(3, again)),
        ("b", change(6, last)),
    ]


BALANCES = [("a", 1), ("b", 5), ("a", 2), ("a", None), ("a", 3), ("b", 6)]


@pytest.mark.parametrize(
    ("integrity", "is_numbered"),
    [
        (ORDERED, False),
        (ORDERED, True),
        (replace(ORDERED, on_violation=Suspend()), True),
        (NoIntegrity(), False),
        (FuzzyWindow(lateness=LATENESS, session_start=FIRST), False),
    ],
)
def test_a_tombstone_ends_the_session_of_its_key_and_no_other(
    feed: Feed, runs: LocalRuns, integrity: IntegrityClass, *, is_numbered: bool
) -> None:
    topic = feed.create("rows", config={"cleanup.policy": "compact"})
    kept = runs.of(accounts(feed.pattern, integrity))
    for key, value in log(numbered=is_numbered):
        feed.send(topic, [value], key=key)
    assert kept.run() is RunOutcome.ENDED
    rows = sorted(read_table(kept.folders.table).to_pylist(), key=lambda row: (row["_emit_offset"], row["_row"]))
    assert [(row["_session"], row["amount"]) for row in rows] == BALANCES
    assert named_files(kept.folders.quarantine) == []
    report = verify_stream(kept.stream, kept.folders, kept.settings.kafka)
    assert (report.status.value, report.violations) == ("proven", ()), report.notes


@pytest.mark.parametrize("split", [None, 1, 2, 3])
def test_a_tombstone_in_any_batch_is_the_same_message(split: int | None) -> None:
    stream = accounts("x")
    sent = [SentMessage[Change | None](value=value, key=key) for key, value in log(numbered=True)]
    ran = run(stream, *sent, split=split)
    assert [row.amount for row in ran.rows] == [amount for _, amount in BALANCES]
    assert {session: state.amount for session, state in ran.states.items()} == {"a": 3, "b": 6}


@pytest.mark.parametrize("split", [None, 1])
def test_a_tombstone_that_waits_for_its_order_is_released_as_any_other(split: int | None) -> None:
    stream = accounts("x", FuzzyWindow(lateness=timedelta(seconds=2), reorder=True, session_start=FIRST))
    sent = [
        SentMessage[Change | None](value=Change(1), key="a", timestamp_ms=1_000),
        SentMessage[Change | None](value=None, key="a", timestamp_ms=3_000),
        SentMessage[Change | None](value=Change(2), key="a", timestamp_ms=2_000),
        SentMessage[Change | None](value=Change(9), key="b", timestamp_ms=9_000),
    ]
    ran = run(stream, *sent, split=split)
    assert [row.amount for row in ran.rows] == [1, 2, None]


def test_an_error_at_a_tombstone_suspends_its_session_alone(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("rows")
    failing = runs.of(replace(accounts(feed.pattern), transform=Failing()))
    for key, value in [*log(numbered=False)[:4], ("b", change(6))]:
        feed.send(topic, [value], key=key)
    failing.run()
    (refused,) = read_table(failing.folders.quarantine).to_pylist()
    assert (refused["session"], refused["cause"], refused["value"]) == ("a", "transform raised", None)
    assert [row["amount"] for row in read_table(failing.folders.table).to_pylist() if row["_session"] == "b"] == [5, 6]
    report = verify_stream(failing.stream, failing.folders, failing.settings.kafka)
    assert (report.status.value, report.violations) == ("states lost", ()), report.notes


def test_tombstones_of_raw_bytes_may_be_skipped() -> None:
    stream = Stream(
        name="sizes", topics=Topics(pattern="x"), transform=Sizes(), decoder=Bytes(), integrity=NoIntegrity()
    )
    ran = run(stream, b"abc", SentMessage[bytes | None](value=None), b"", key="k")
    assert [row.amount for row in ran.rows] == [3, 0]
    assert [each.cause for each in ran.verdicts] == ["", "skip", ""]


def test_a_strict_class_refuses_a_tombstone_in_the_middle_of_numbers() -> None:
    strict = Strict(evidence=Numbers(), session_start=FIRST, on_violation=Halt())
    ran = run(accounts("x", strict), Change(1, 1), SentMessage[Change | None](value=None), key="a")
    assert ran.verdicts[-1].cause == "no evidence"
