"""The ends of topics that a run remembers prove a deletion harmless or not, after any history."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from hypothesis import event, given
from hypothesis import strategies as st

from lockstep.engine.driver.topic_history import Instant, TopicHistory, TopicWatch
from lockstep.errors import KafkaError
from lockstep.kafka.topic_end import TopicEnd, judge_topic_end
from lockstep.model.position import Position, TopicIdPartition
from tests.support.cluster_views import topic, view

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lockstep.kafka.admin import ClusterAdmin, ClusterView

AGE_MAX = 60.0
PARTITIONS = 2
ANSWER_SECONDS = 0.001

ACTIONS = st.one_of(
    st.tuples(st.just("wait"), st.floats(0.1, 30)),
    st.tuples(st.just("send"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("read"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("silence"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.sampled_from(("look", "look", "quick look", "hidden look", "create again")), st.just(0)),
)


class Life:
    """One topic between its creation and its deletion: the time of each message, and the position in each log."""

    def __init__(self, number: int) -> None:
        self.topic = topic("a", f"id-{number}", PARTITIONS)
        self.written: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self.read = [0] * PARTITIONS

    def first_unread(self) -> float:
        """Return the time of its first unread message; infinite if all are read."""
        unread = [times[read:] for times, read in zip(self.written, self.read, strict=True)]
        return min((times[0] for times in unread if times), default=float("inf"))

    def positions(self) -> dict[int, Position]:
        return {
            n: Position(topic="a", topic_id=self.topic.topic_id, partition=n, next_offset=offset)
            for n, offset in enumerate(self.read)
        }


class World:
    """A cluster with one topic, and a run that reads it. Time passes only by waits and answers."""

    def __init__(self) -> None:
        self.now, self.history, self.lives, self.silent = 0.0, TopicHistory(), [Life(0)], set[int]()
        self.described = self.look()

    def do(self, what: str, argument: float) -> None:
        life = self.lives[-1]
        number = int(argument)
        if what == "wait":
            self.now += argument
        elif what == "send":
            life.written[number].append(self.now)
        elif what == "read":
            life.read[number] = len(life.written[number])
        elif what == "silence":
            self.silent ^= {number}
        elif what == "create again":
            self.lives.append(Life(len(self.lives)))
        elif what == "look":
            self.described = self.look()
        elif what == "hidden look":
            self.described = self.look(is_hidden=True)
        else:
            self.look(quick=self.described)

    def look(self, quick: ClusterView | None = None, *, is_hidden: bool = False) -> ClusterView:
        """Read the ends of the topics as described now, or, quickly, as described before: Kafka is asked by name."""
        asked = self.tick()
        topics = quick.topics.values() if quick is not None else ([] if is_hidden else [self.lives[-1].topic])
        self.tick()
        sizes = {n: len(times) for n, times in enumerate(self.lives[-1].written) if n not in self.silent}
        ends = {TopicIdPartition(each.topic_id, n): (0, size, size) for each in topics for n, size in sizes.items()}
        seen = view(*topics, ends=ends)
        self.history.note(seen, asked, self.tick(), is_described=quick is None)
        return seen

    def tick(self) -> Instant:
        self.now += ANSWER_SECONDS
        return Instant(self.now, self.now)

    def miss(self, life: Life) -> TopicEnd:
        """Return the judgement on a topic that is gone."""
        return judge_topic_end(self.history.find_gone(life.topic.topic_id), life.positions(), {}, AGE_MAX)


@given(actions=st.lists(ACTIONS, max_size=25))
def test_an_event_loses_no_message_that_was_there_when_the_end_was_observed(actions: list[tuple[str, float]]) -> None:
    world = World()
    for what, argument in actions:
        world.do(what, argument)
    world.look(is_hidden=True)
    for life in world.lives:
        end = world.miss(life)
        event(f"event: {end.is_event}")
        if end.is_event and end.noticed_us is not None:
            observed = end.noticed_us / 1e6 - end.age_seconds
            assert end.age_seconds <= AGE_MAX
            assert life.first_unread() > observed - ANSWER_SECONDS / 2
            assert end.ends == dict(enumerate(life.read))


@given(actions=st.lists(ACTIONS, max_size=25), looks=st.lists(st.sampled_from(("look", "quick look")), max_size=9))
def test_the_deletion_of_a_topic_that_stands_still_is_an_event(
    actions: list[tuple[str, float]], looks: list[str]
) -> None:
    """Its leaders stop answering before the brokers stop showing it; and most reads request no description."""
    world = World()
    for what, argument in actions:
        world.do(what, argument)
    world.silent.clear()
    for number in range(PARTITIONS):
        world.do("read", number)
    world.do("look", 0)
    life = world.lives[-1]
    for number, look in enumerate(looks):
        if number > len(looks) // 2:
            world.silent = {0, 1} if number % 2 else {1}
        world.do(look, 0)
    world.look(is_hidden=True)
    end = world.miss(life)
    assert end.is_event, end.loss
    assert end.ends == dict(enumerate(life.read))


def begun(*actions: str) -> World:
    """Return a world after these actions on the first partition."""
    world = World()
    for what in actions:
        world.do(what, 1.0 if what == "wait" else 0)
    return world


def test_an_end_that_may_be_that_of_a_successor_proves_nothing() -> None:
    """The topic got a message and was created again, empty: asked by name, Kafka shows the position as its end."""
    world = begun("wait", "send", "create again", "quick look")
    world.look(is_hidden=True)
    end = world.miss(world.lives[0])
    assert end.is_event
    assert end.age_seconds > 1.0, "the look before the message"


def test_an_end_is_certain_once_a_later_look_shows_the_same_topic() -> None:
    world = begun("send", "read", "quick look")
    world.silent = {0, 1}
    world.do("look", 0)
    world.look(is_hidden=True)
    assert world.miss(world.lives[0]).is_event


def test_a_topic_that_is_shown_again_is_not_gone() -> None:
    world = begun("hidden look", "look")
    assert world.history.find_gone("id-0") is None


def test_an_answer_that_another_thread_has_overtaken_brings_no_topic_back() -> None:
    world = begun()
    asked = world.tick()
    late = view(world.lives[0].topic, ends={})
    world.look(is_hidden=True)
    world.history.note(late, asked, world.tick())
    assert world.history.find_gone("id-0") is not None


def test_what_was_judged_or_is_not_asked_about_any_more_is_forgotten() -> None:
    """Topics are created and deleted for years."""
    world = begun("hidden look")
    world.history.forget(["id-0"])
    assert world.history.find_gone("id-0") is None
    world = begun()
    world.history.leave({"a"})
    assert world.history.names == frozenset()
    world.look(is_hidden=True)
    assert world.history.find_gone("id-0") is None


def test_an_age_is_that_of_the_clock_that_shows_more() -> None:
    """One clock stops while the machine sleeps; the other may be set back."""
    slept = Instant(10.0, 9_000.0)
    set_back = Instant(50.0, 100.0)
    assert (slept.since(Instant(9.0, 1_000.0)), set_back.since(Instant(9.0, 1_000.0))) == (8_000.0, 41.0)


def test_the_watch_looks_while_nothing_else_does_and_outlives_a_kafka_that_does_not_answer() -> None:
    world = World()
    answers: Iterator[ClusterView | KafkaError] = iter(
        [
            KafkaError("no answer", next_step=""),
            view(world.lives[0].topic, ends={TopicIdPartition("id-0", 0): (0, 7, 7)}),
        ]
    )
    looked = threading.Event()

    class Admin:
        def view(self, names: Iterable[str]) -> ClusterView:
            assert set(names) == {"a"}
            answer = next(answers, None)
            if answer is None:
                looked.set()
                raise KafkaError("no answer", next_step="")
            if isinstance(answer, KafkaError):
                raise answer
            return answer

    watch = TopicWatch(cast("ClusterAdmin", Admin()), 0.05)
    watch.history.note(view(world.lives[0].topic, ends={}), Instant.now(), Instant.now())
    with watch:
        assert looked.wait(60)
    watch.history.note(view(ends={}), Instant.now(), Instant.now())
    gone = watch.history.find_gone("id-0")
    assert gone is not None
    assert next(look.ends[0].high_watermark for look in gone.looks if 0 in look.ends) == 7
