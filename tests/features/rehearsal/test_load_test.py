"""A load test through a real broker, with stream and producer in separate processes."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Every, Topics
from lockstep.engine.executor.message_source import KafkaSource
from lockstep.errors import KafkaError
from lockstep.features.rehearsal import copied_topics, load_test
from lockstep.features.rehearsal.copied_topics import PREFIX, create_copies, find_leftovers
from lockstep.features.rehearsal.load_plan import Laps, Limit
from lockstep.features.rehearsal.load_report import make_page
from lockstep.features.rehearsal.load_test import (
    LoadTest,
    delete_leftovers,
    hold_test_lock,
    make_tested,
    prepare_load_test,
)
from lockstep.features.rehearsal.message_copy import CopiedMessage
from lockstep.features.rehearsal.paced_producer import PartitionOrder, SendOrder, make_lanes, open_producer, send
from lockstep.html_page import render_page
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.kafka.reader import MessageRun, Range, UnreadableRange
from lockstep.model.position import TopicNamePartition
from lockstep.operations.plan_frame import Refused
from lockstep.storage import NeedsFileSystem
from lockstep.table import delta_log
from tests.support.adding_stream import POISON
from tests.support.descendants import list_descendants
from tests.support.feed import session, update
from tests.support.listeners import find_reachable, watch_listeners
from tests.support.weighing_stream import WEIGHTS, Weighing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lockstep.kafka.client import ClusterClient
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

RATE = 400
SECONDS = 8.0


@pytest.fixture
def quick(feed: Feed, runs: LocalRuns, topic_family: str) -> LocalRuns:
    """A stream named after the test, so that other tests do not find its copies; one session per partition."""
    topic = feed.create("books", partitions=2)
    for partition in (0, 1):
        feed.send(topic, session(20), key=f"s{partition}", partition=partition)
    stream = dataclasses.replace(runs.stream, name=topic_family[-40:].lstrip("_0123456789"), trigger=Every(seconds=0.5))
    return runs.of(stream)


def prepared(runs: LocalRuns, rates: str = f"{RATE}/s", minutes: float = SECONDS / 60) -> LoadTest:
    return prepare_load_test(runs.handle, [runs.stream], rates=rates, minutes=minutes, topics_max=None)


def topics_of(runs: LocalRuns) -> tuple[str, ...]:
    return find_leftovers(runs.handle.cluster.topic_names(), runs.stream.name)


def fail_first_deletions(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Fail the first deletions, as if Kafka were briefly unavailable."""
    tries = iter(range(count))
    really_delete = copied_topics.delete_copies

    def delete(admin: ClusterClient, names: Sequence[str], timeout_seconds: float) -> None:
        if next(tries, None) is not None:
            raise KafkaError("Kafka did not answer", next_step="start it")
        really_delete(admin, names, timeout_seconds)

    monkeypatch.setattr(load_test, "delete_copies", delete)


def test_a_load_test_proves_what_it_read_and_leaves_nothing_behind(
    quick: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_first_deletions(monkeypatch, 1)  # the deletion at the end of the stage, which must not lose the measurements
    before = quick.handle.view.ends
    test = prepared(quick)
    assert (test.plan.laps, test.plan.partitions, test.plan.sample_messages) == (Laps.NEW_KEYS, 2, 42)
    (test.scratch / "stage-1" / "tables").mkdir(parents=True)  # left by a killed test whose topics are gone
    with watch_listeners(lambda: list_descendants(os.getpid())) as listeners:
        result = test.run(lambda _: None)
    assert "java" in {listener.program for listener in listeners}
    assert find_reachable(listeners) == []
    (stage,) = result.stages
    assert (stage.failure, stage.proof) == ("", "proven")
    assert stage.committed == stage.proven_messages == stage.sent.messages == RATE * SECONDS
    assert stage.latency_p50_seconds is not None
    assert stage.load.task_cores > 0
    assert stage.backlog[-1][1] == 0
    assert stage.batches.rows > stage.committed
    page = render_page(make_page(result))
    assert result.sustainable.sentence in page
    assert page.count("<svg") == 3
    halted = msgspec.structs.replace(stage, failure="topic gone at books/0")
    assert f"{RATE}/s: topic gone at books/0" in render_page(
        make_page(msgspec.structs.replace(result, stages=(halted,)))
    )
    assert topics_of(quick) == ()
    assert (
        ConsumerGroup(quick.settings.kafka, f"loadtest_{quick.stream.name}").published([TopicNamePartition("t", 0)])
        == {}
    )
    assert quick.handle.view.ends == before
    assert not delta_log.has_log(quick.folders.table)
    assert [path for path in quick.root.rglob("*") if ".loadtest" in path.parts] == []


def test_topics_of_another_load_test_are_named_and_removed_on_request(quick: LocalRuns) -> None:
    left = f"{PREFIX}.{quick.stream.name}.1.books"
    create_copies(quick.handle.admin, quick.stream.name, {left: 1}, 30.0)
    with pytest.raises(Refused, match=left) as refused:
        prepared(quick)
    assert "--clean" in refused.value.next_step
    with pytest.raises(Refused, match="another load test has created topic"):
        create_copies(quick.handle.admin, quick.stream.name, {f"{left}.more": 1, left: 1}, 30.0)
    assert topics_of(quick) == (left,)
    assert delete_leftovers(quick.handle) == (left,)
    assert topics_of(quick) == ()


def test_copies_take_messages_larger_than_the_brokers_do_by_default(quick: LocalRuns) -> None:
    large = CopiedMessage(b"k", bytes(3_000_000))
    copy = f"{PREFIX}.{quick.stream.name}.1.large"
    create_copies(quick.handle.admin, quick.stream.name, {copy: 1}, 30.0, message_bytes_max=large.size)
    order = SendOrder("{}", 0.1, renames_keys=True, partitions=(PartitionOrder(copy, 0, 2, (large,)),))
    sent = send(open_producer(quick.settings.kafka), make_lanes(order), order.seconds, threading.Event())
    assert (sent.messages, sent.failure) == (2, "")
    assert delete_leftovers(quick.handle) == (copy,)


def test_two_load_tests_of_a_stream_exclude_each_other(quick: LocalRuns) -> None:
    with (
        hold_test_lock(quick.handle),
        pytest.raises(Refused, match="another load test runs"),
        hold_test_lock(quick.handle),
    ):
        pass
    with hold_test_lock(quick.handle):
        pass


def test_copies_that_a_declared_stream_would_read_are_refused(quick: LocalRuns) -> None:
    greedy = dataclasses.replace(quick.stream, topics=dataclasses.replace(quick.stream.topics, pattern=r".+\.books"))
    same_name = dataclasses.replace(quick.stream, name=make_tested(quick.stream).name)
    with pytest.raises(Refused, match="is declared"):
        prepare_load_test(quick.handle, [same_name], rates="50/s", minutes=1.0, topics_max=None)
    with pytest.raises(Refused, match="would read its topics") as refused:
        prepare_load_test(quick.handle, [greedy], rates="50/s", minutes=1.0, topics_max=None)
    assert "exclude" in refused.value.next_step


def test_a_stage_of_too_few_batches_is_refused(quick: LocalRuns) -> None:
    slow = quick.of(dataclasses.replace(quick.stream, trigger=Every(seconds=5)))
    with pytest.raises(Refused, match="less than 4 batches"):
        prepared(slow, minutes=0.2)


def test_a_lookup_is_the_table_of_the_stream_itself(quick: LocalRuns) -> None:
    """The table root of a test is an empty scratch folder: a lookup would find no table in it."""
    looking = quick.of(dataclasses.replace(quick.stream, transform=Weighing(), lookups=(WEIGHTS,)))
    stream = prepared(looking).stream
    assert [each.find_table(Path("/scratch")) for each in stream.lookups] == [quick.settings.table_root / WEIGHTS.path]


def test_a_sample_that_is_too_small_for_one_message_is_the_reason_given(
    quick: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of 64 MB has 4 MB for each of 16 partitions; here it has 40 bytes for each of two."""
    monkeypatch.setattr(copied_topics, "SAMPLE_BYTES", 80)
    with pytest.raises(Refused, match=r"share of the sample, .*, which ends before a message of") as refused:
        prepared(quick)
    assert "--topics" in refused.value.next_step


def test_no_more_is_read_than_a_sample_holds(quick: LocalRuns, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range has a message count: without a limit, 100,000 large messages would be read for 64 MB of them."""
    topic = feed.create("large")
    read = list[int]()
    feed.send(topic, [*session(20), *(update(22 + n, a=1) for n in range(3_000))], key="k")

    class Counting(KafkaSource):
        def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun | UnreadableRange]:
            for run in super().read(ranges):
                read.append(len(run.messages) if isinstance(run, MessageRun) else 0)
                yield run

    monkeypatch.setattr(copied_topics, "KafkaSource", Counting)
    monkeypatch.setattr(copied_topics, "SAMPLE_BYTES", 12_000)
    alone = quick.of(dataclasses.replace(quick.stream, topics=Topics(pattern=topic)))
    assert prepared(alone).plan.sample_messages > 42
    assert sum(read) <= 1_000


def test_tables_in_an_object_store_are_refused_before_anything_else(quick: LocalRuns) -> None:
    there = dataclasses.replace(quick, tables=Path("s3:") / "bucket")
    with pytest.raises(NeedsFileSystem, match="as a load test does"):
        prepared(there)


@pytest.mark.slow
def test_a_stream_that_halts_under_load_is_a_result_and_not_an_error(
    quick: LocalRuns, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_first_deletions(monkeypatch, 2)
    topic = feed.create("poisoned")
    feed.send(topic, [*session(5), update(7, a=POISON)], key="p")
    (stage,) = (result := prepared(quick).run(lambda _: None)).stages
    topics_left = topics_of(quick)
    assert len(topics_left) == 2
    assert "transform raised" in stage.failure
    assert (stage.load.is_sustained, stage.drain_seconds) == (False, None)
    assert result.sustainable.limit is Limit.HALT
    assert stage.proof == "proven"
    assert 0 < stage.committed == stage.proven_messages < stage.sent.messages
    assert result.failure == (f"Kafka did not answer; delete the rest: lockstep loadtest {quick.stream.name} --clean")
    assert delete_leftovers(quick.handle) == topics_left
