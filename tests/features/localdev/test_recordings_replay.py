"""The schedule of the live feed: the evidence of its sessions holds for all sent messages. No Kafka, no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from assets.betting_markets import betting_markets
from assets.checksummed_books import checksummed_books
from assets.order_books import order_books
from lockstep.features.localdev.feed import SESSION_MESSAGES_MAX, FeedPlan, NextMessage, list_recordings, replay
from lockstep.features.localdev.recordings import Recorded, RecordedKind
from lockstep.testing import SentMessage, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.declare.stream import AnyStream

RECORDINGS = Path(__file__).parents[2] / "recordings"


def message(book: str, number: int) -> Recorded:
    kind = RecordedKind.DIFFERENCE if number else RecordedKind.SNAPSHOT
    return Recorded(book=book, kind=kind, value=str(number).encode(), received_ns=number)


def plan(**changes: object) -> FeedPlan:
    small = {f"s.{book}": [message(book, number) for number in range(3)] for book in "ab"}
    quiet = FeedPlan(recordings=small, run="r", messages_per_second=10.0, new_topic_seconds=(1e9, 1e9))
    return msgspec.structs.replace(quiet, **changes)


def first(wanted: FeedPlan, count: int) -> list[NextMessage]:
    return list(islice(replay(wanted), count))


def test_topics_take_turns_at_the_speed_that_was_asked_for() -> None:
    sent = first(plan(), 4)
    assert [each.topic for each in sent] == ["s.a", "s.b", "s.a", "s.b"]
    assert [each.at_seconds for each in sent] == [0.0, 0.1, 0.2, pytest.approx(0.3)]


def test_a_recording_that_ends_begins_again_as_a_new_session() -> None:
    sent = [each for each in first(plan(), 14) if each.topic == "s.a"]
    assert [(each.key, each.value) for each in sent] == [
        *[(b"a.r.1", b"0"), (b"a.r.1", b"1"), (b"a.r.1", b"2")],
        *[(b"a.r.2", b"0"), (b"a.r.2", b"1"), (b"a.r.2", b"2")],
        (b"a.r.3", b"0"),
    ]


def test_a_long_recording_is_cut_so_that_sessions_begin_while_one_looks_on() -> None:
    long = {"s.a": [message("a", number) for number in range(SESSION_MESSAGES_MAX + 5)]}
    counted = Counter(each.key for each in first(plan(recordings=long), SESSION_MESSAGES_MAX + 1))
    assert counted == {b"a.r.1": SESSION_MESSAGES_MAX, b"a.r.2": 1}


def test_two_feeds_never_share_a_session() -> None:
    keys = [{each.key for each in first(plan(run=run), 50)} for run in ("r", "s")]
    assert keys[0].isdisjoint(keys[1])


def test_a_new_topic_is_born_on_time_named_as_none_before_fed_once_and_then_silent() -> None:
    growing = plan(new_topic_seconds=(1.0, 2.0), taken=["s.a_2"])
    sent = list(takewhile(lambda each: each.at_seconds < 10, replay(growing)))
    born: dict[str, float] = {}
    for each in sent:
        born.setdefault(each.topic, each.at_seconds)
    times = {topic: round(at) for topic, at in born.items() if topic not in plan().recordings}
    assert times == {"s.a_3": 1, "s.b_2": 3, "s.a_4": 5, "s.b_3": 7, "s.a_5": 9}
    counted = Counter(each.topic for each in sent)
    assert counted["s.a_3"] == counted["s.b_2"] == len(plan().recordings["s.a"])


@pytest.fixture(scope="module")
def recorded() -> dict[str, Sequence[Recorded]]:
    return list_recordings(RECORDINGS)


@pytest.mark.parametrize("stream", [order_books, checksummed_books, betting_markets], ids=lambda stream: stream.name)
def test_the_evidence_of_the_real_recordings_holds_in_every_replay(
    stream: AnyStream, recorded: dict[str, Sequence[Recorded]]
) -> None:
    """Two rounds of each shortened recording: every session ends in the middle of its recording."""
    short = {topic: messages[:40] for topic, messages in recorded.items() if topic.startswith(f"{stream.name}.")}
    assert short
    sent: dict[str, list[NextMessage]] = defaultdict(list)
    for each in islice(replay(plan(recordings=short)), 80 * len(short)):
        sent[each.topic].append(each)
    for topic, messages in sent.items():
        ran = run(stream, *(SentMessage(value=each.value, key=each.key) for each in messages), topic=topic)
        assert ran.finding is None, topic
        assert len(ran.folded) == len(messages)
