"""`lockstep try`: real messages through decoder, gate and fold, and nothing is written."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import (
    Envelope,
    FirstSnapshot,
    Kind,
    Latest,
    LogOnly,
    NoIntegrity,
    Ordered,
    Record,
    Sequence,
    SessionStart,
    Stream,
    Strict,
    TableFold,
    Topics,
)
from lockstep.engine.driver.loop import RunOutcome
from lockstep.operations.inspect.trial import NothingToTry, try_stream
from lockstep.operations.inspect.whole_tables import list_costly_streams
from tests.support.adding_stream import POISON, adding
from tests.support.feed import session, snapshot, update
from tests.support.window_folds import Tumbling, Value, a_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


class Levels(msgspec.Struct):
    """Quantities by price, both as text; "0" removes a level."""

    levels: list[tuple[str, str]]
    snapshot: bool = False


class LevelRow(msgspec.Struct, frozen=True):
    """A changed level."""

    price: str
    quantity: str | None


class TextBook(TableFold[Levels, str, str, LevelRow]):
    """A book whose keys are texts."""

    key = ("price",)
    removed = "quantity"

    def envelope(self, message: Levels, record: Record) -> Envelope:
        return Envelope(record.key_text, Kind.SNAPSHOT if message.snapshot else Kind.UPDATE)

    def changes(self, message: Levels) -> Iterable[tuple[str, str | None]]:
        return [(price, None if quantity == "0" else quantity) for price, quantity in message.levels]

    def emit(self, message: Levels | None, key: str, new: str | None, previous: str | None) -> LevelRow:
        return LevelRow(key, new)


class EndingBook(TextBook):
    """A book whose hook reads the table, which is therefore saved whole."""

    def on_end(self, state: dict[str, str]) -> Iterable[LevelRow]:
        return [LevelRow(price, quantity) for price, quantity in state.items()]


def test_a_stream_that_holds_is_shown_with_rows_and_costs(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("good")
    empty = feed.create("empty")
    feed.send(topic, session(20))
    tried = try_stream(runs.stream, runs.settings, messages_max=10)
    assert [(each.topic, each.start, each.until, each.messages) for each in tried.partitions] == [(topic, 0, 10, 10)]
    assert (tried.messages, tried.sessions, tried.rows, tried.undecodable) == (10, 1, 18, 0)
    assert tried.sample[:2] == ({"name": "a", "value": 2, "total": 4}, {"name": "b", "value": 1, "total": 3})
    assert tried.microseconds_per_message > 0
    assert tried.declared.broken == 0
    assert tried.advice == ("Strict(evidence=Sequence()) holds on all messages tried",)
    assert list(runs.folders.root.iterdir()) == []
    with pytest.raises(NothingToTry, match="no message to try in topic"):
        try_stream(runs.stream, runs.settings, messages_max=10, topic=empty)


def test_a_numbered_feed_declared_by_the_log_only_is_advised_to_prove_its_numbers(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("numbered"), session(5))
    tried = try_stream(adding(feed.pattern, Strict(evidence=LogOnly())), runs.settings, messages_max=100)
    assert any("Strict(evidence=Sequence()) also proves" in line for line in tried.advice)


def test_a_gap_names_the_class_that_holds(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("gappy")
    feed.send(topic, [*session(3), update(9, a=1), snapshot(10, a=1), update(11, a=1), b"garbage"])
    tried = try_stream(runs.stream, runs.settings, messages_max=100)
    assert [(each.until, each.finding.cause) for each in tried.partitions if each.finding] == [(4, "gap")]
    by_name = {each.declaration: each for each in (tried.declared, *tried.others)}
    assert by_name["Strict(evidence=Sequence())"].remarks == {"suspend: gap": 1}
    assert (by_name["Strict(evidence=LogOnly())"].broken, by_name["Ordered()"].broken) == (0, 0)
    assert by_name["Ordered()"].remarks == {"accept: gap": 1}
    assert tried.undecodable == 1
    assert any("broken by 1 messages; Strict(evidence=LogOnly()) holds on all" in line for line in tried.advice)


@pytest.mark.parametrize("first", [1, 3, 4, 5, 7])
@pytest.mark.parametrize("kind", ["snapshot", "update"])
def test_a_stream_that_would_halt_does_not_hold(feed: Feed, runs: LocalRuns, kind: str, first: int) -> None:
    """This includes a snapshot with a lower number: under Suspend() it would restart the session."""
    feed.send(feed.create("again"), [*session(3), snapshot(first, a=1) if kind == "snapshot" else update(first, a=1)])
    tried = try_stream(runs.stream, runs.settings, messages_max=100)
    would_halt = any(each.finding is not None for each in tried.partitions)
    assert (tried.declared.broken == 1) is would_halt
    assert any("holds on all messages tried" in line for line in tried.advice) is not would_halt


def test_a_feed_without_snapshots_is_compared_with_classes_that_begin_at_its_first_message(
    feed: Feed, runs: LocalRuns
) -> None:
    feed.send(feed.create("values"), [update(number, a=1) for number in range(1, 6)])
    begins = Strict(evidence=Sequence(), session_start=SessionStart.FIRST_MESSAGE)
    tried = try_stream(adding(feed.pattern, begins), runs.settings, messages_max=100)
    assert {each.declaration: each.broken for each in tried.others if "FIRST_MESSAGE" not in each.declaration} == {}
    assert [each.broken for each in (tried.declared, *tried.others)] == [0] * (1 + len(tried.others))


def test_a_log_that_retention_has_cut_is_advised_to_start_at_the_first_snapshot(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("cut")
    feed.send(topic, [*session(3), snapshot(5, a=1), update(6, a=1)])
    feed.expire(topic, 2)
    tried = try_stream(runs.stream, runs.settings, messages_max=100)
    assert tried.partitions[0].finding is not None
    assert any("Topics(start=FirstSnapshot())" in line for line in tried.advice)
    for start in (FirstSnapshot(), Latest()):  # for Latest(), the oldest messages are tried
        topics = Topics(pattern=feed.pattern, start=start)
        joined = try_stream(dataclasses.replace(runs.stream, topics=topics), runs.settings, messages_max=100)
        assert (joined.counts.before_snapshot, joined.rows, joined.declared.broken) == (2, 1, 0)
    assert isinstance(runs.stream.integrity, Strict)
    assert runs.stream.integrity.evidence == Sequence()


def test_refused_messages_are_told_and_end_the_range_early(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("poisoned")
    poisoned = [update(number, a=POISON) for number in range(2, 12)]
    feed.send(topic, [snapshot(1, a=1), *poisoned], key="first")
    feed.send(topic, session(3), key="second")
    tried = try_stream(adding(feed.pattern, NoIntegrity()), runs.settings, messages_max=100)
    assert (tried.messages, tried.sessions, tried.counts.refused) == (9, 1, 8)
    assert any(
        line.startswith("8 of 9 messages would go to quarantine: ") and line.endswith("the rest was not folded")
        for line in tried.advice
    )


def test_a_window_stream_without_rows_says_that_no_window_has_closed(feed: Feed, runs: LocalRuns) -> None:
    values = [msgspec.json.encode(Value(t, t)) for t in range(5, 60, 5)]
    feed.send(feed.create("values"), values)
    stream = a_stream(Tumbling(), pattern=feed.pattern)
    early = try_stream(stream, runs.settings, messages_max=4)
    assert (early.messages, early.rows) == (4, 0)
    assert any(line.startswith("No window has closed: ") and "TumblingWindows" in line for line in early.advice)
    later = try_stream(stream, runs.settings, messages_max=100)
    assert later.rows > 0
    assert not any("No window" in line for line in later.advice)


@pytest.mark.parametrize("removed", ["8442.65000000", "84.4265e2", "8442.65"])
def test_a_number_that_was_a_key_in_two_spellings_is_named(feed: Feed, runs: LocalRuns, removed: str) -> None:
    sent = [Levels([("8442.65", "1.0")], snapshot=True), Levels([(removed, "0"), ("7", "0")])]
    feed.send(feed.create("book"), [msgspec.json.encode(each) for each in sent], key="eth")
    stream = Stream(name="adding", topics=Topics(pattern=feed.pattern), transform=TextBook(), integrity=Ordered())
    tried = try_stream(stream, runs.settings, messages_max=100)
    spellings = [line for line in tried.advice if "Two spellings" in line]
    is_same = removed == "8442.65"
    assert (len(spellings), tried.counts.absent_removals) == ((0, 1) if is_same else (1, 2))
    assert all(f"'8442.65' and '{removed}'" in line and "session 'eth'" in line for line in spellings)
    shown = "1 removal of keys" if is_same else "2 removals of keys"
    assert any(line.startswith(f"{shown} that were not there") for line in tried.advice)


@pytest.mark.parametrize(("fold", "is_named"), [(TextBook(), False), (EndingBook(), True)], ids=["rows", "whole"])
def test_a_large_table_that_is_saved_whole_is_named_before_and_after(
    feed: Feed,
    runs: LocalRuns,
    fold: TextBook,
    is_named: bool,  # noqa: FBT001
) -> None:
    levels = [(f"price {number}", "a quantity") for number in range(3_000)]
    sent = [Levels(levels, snapshot=True), *(Levels([("price 1", str(number))]) for number in range(9))]
    topic = feed.create("book")
    feed.send(topic, [msgspec.json.encode(each) for each in sent], key="eth")
    stream = Stream(name="adding", topics=Topics(pattern=feed.pattern), transform=fold, integrity=Ordered())
    tried = try_stream(stream, runs.settings, messages_max=100)
    named = [line for line in tried.advice if "saved whole, as EndingBook.on_end is given all of it" in line]
    assert bool(named) is is_named
    assert not is_named or named[0].startswith("Session 'eth' has a state of ")
    for number in range(2):
        assert runs.of(stream).run() is RunOutcome.ENDED
        feed.send(topic, [msgspec.json.encode(Levels([("price 2", str(number))]))], key="eth")
    costly = dict(list_costly_streams({"adding": stream}, runs.settings.table_root))
    assert (list(costly), "saved whole" in costly.get("adding", "")) == (["adding"] * is_named, is_named)
