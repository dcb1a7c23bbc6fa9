"""A whole stream over a secured cluster: producing, discovery, audit, tasks, and the preferred brokers."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin._acl import AclOperation

from lockstep import Every
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import KafkaError
from lockstep.features.localdev.producer import count_produced, produce
from lockstep.kafka.client import make_consumer, make_reader_configuration
from lockstep.kafka.reader import MessageRun, Range, read_ranges
from tests.integration.engine.test_new_topics import wait_until_read
from tests.integration.security.secured import PHRASE
from tests.support.adding_stream import adding
from tests.support.feed import folded, session, update
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from lockstep.settings import KafkaSettings
    from tests.integration.security.secured import Secured

SECURED: dict[str, Callable[[Secured], KafkaSettings]] = {
    "SASL_SSL": lambda kafka: kafka.sasl("SCRAM-SHA-512"),
    "mutual TLS": lambda kafka: kafka.mutual(),
}
LOGGED_SECONDS_MAX = 30.0
LEAST = "least-rights"
MOMENT = "rights-for-a-moment"
NOVEL = "rights-to-some"
REFUSED = 4
"""Refused reads before the right is restored: more than the tries within a second."""
PATIENCE_SECONDS = {True: 60.0, False: 1.0}


@dataclass(frozen=True)
class Sent:
    """A message to produce."""

    key: bytes
    value: bytes
    timestamp_ms: int = 1_700_000_000_000


@pytest.mark.parametrize("way", SECURED)
def test_a_stream_reads_exactly_what_was_produced(
    way: str, secured: Secured, topic_family: str, tmp_path: Path
) -> None:
    kafka = SECURED[way](secured)
    topic = f"{topic_family}.a"
    values = session(40)

    assert produce(kafka, topic, [Sent(b"s", value) for value in values]) == len(values)
    runs = LocalRuns(adding(rf"{topic_family}\..+"), kafka.bootstrap_servers, tmp_path, kafka)
    outcome = runs.run()

    assert outcome is RunOutcome.ENDED
    assert runs.rows(topic) == folded([(offset, "s", value) for offset, value in enumerate(values)])
    assert count_produced(kafka, topic) == len(values)


def test_a_stream_needs_no_other_rights_than_the_document_says(
    secured: Secured, topic_family: str, tmp_path: Path
) -> None:
    topic = f"{topic_family}.a"
    values = session(5)
    produce(secured.plain(), topic, [Sent(b"s", value) for value in values])
    stream = dataclasses.replace(adding(rf"{topic_family}\..+"), name="least_rights")
    secured.create_user(LEAST, PHRASE)
    secured.forbid_the_cluster(LEAST)
    secured.allow_only(LEAST, topic, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
    secured.allow_group(LEAST, stream.name)

    kafka = secured.sasl("SCRAM-SHA-256", LEAST)
    runs = LocalRuns(stream, kafka.bootstrap_servers, tmp_path, kafka)

    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == folded([(offset, "s", value) for offset, value in enumerate(values)])
    with pytest.raises(KafkaError, match="was not made: Authorization failed"):
        produce(kafka, topic, [Sent(b"s", b"x")])


@pytest.mark.parametrize("given_back", [True, False])
def test_a_topic_that_may_not_be_read_for_a_moment_is_read_soon_again_and_no_run_waits_for_ever(
    secured: Secured, topic_family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, given_back: bool
) -> None:
    """Three refusals within a second must not exclude the topic for five minutes without a log."""
    topic = f"{topic_family}.a"
    values = session(5)
    produce(secured.plain(), topic, [Sent(b"s", value) for value in values])
    secured.create_user(MOMENT, PHRASE)
    secured.allow_only(MOMENT, topic, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
    kafka = secured.sasl("SCRAM-SHA-256", MOMENT)
    denied = contextlib.ExitStack()
    runs = LocalRuns(adding(rf"{topic_family}\..+"), kafka.bootstrap_servers, tmp_path, kafka)
    refused: list[BatchPlan] = []

    def refuse(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            if not refused:
                denied.enter_context(secured.denied(MOMENT, AclOperation.READ, topic))
            refused.append(plan)
            if given_back and len(refused) == REFUSED:
                denied.close()
            return runner(plan)

        return run

    with denied:
        runs = runs.tuned(idle_seconds=0.1, retry_seconds=0.2, patience_seconds=PATIENCE_SECONDS[given_back])
        if given_back:
            assert runs.run(around=refuse) is RunOutcome.ENDED
            assert runs.rows(topic) == folded([(offset, "s", value) for offset, value in enumerate(values)])
        else:
            with pytest.raises(KafkaError, match=rf"{topic}/0 gave no message for . s \(.*authorization failed\)"):
                runs.run(around=refuse)
    news = f"{topic}/0: Fetch from broker 1 failed: Broker: Topic authorization failed"
    assert caplog.messages.count(news) == 1


def test_a_new_topic_that_may_not_be_read_is_named_and_holds_up_no_other(
    secured: Secured, topic_family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the run would add no new topic at all, without a log."""
    names = [f"{topic_family}.{name}" for name in "abc"]
    values = session(5)
    seen = (AclOperation.DESCRIBE_CONFIGS,)
    first, unreadable, other = names
    secured.create_user(NOVEL, PHRASE)
    for topic, right in zip(names, (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.READ), strict=True):
        secured.allow_only(NOVEL, topic, right, *seen)
    produce(secured.plain(), first, [Sent(b"s", value) for value in values])
    kafka = secured.sasl("SCRAM-SHA-256", NOVEL)
    stream = adding(rf"{topic_family}\..+")
    stop = threading.Event()
    runs = LocalRuns(stream, kafka.bootstrap_servers, tmp_path, kafka).tuned(appear_seconds=0.2)
    runs.run()
    going = threading.Thread(target=runs.run, kwargs={"trigger": Every(seconds=0.2), "stop": stop})
    going.start()
    try:
        produce(secured.plain(), first, [Sent(b"s", update(7, a=1))])
        wait_until_read(runs, first, len(values) + 1)
        for topic in (unreadable, other):
            produce(secured.plain(), topic, [Sent(b"s", value) for value in values])
        wait_until_read(runs, other, len(values))
    finally:
        stop.set()
        going.join()
    text = f"new topic {unreadable} is not read: Kafka shows it to this user, and does not let it read"
    assert caplog.messages.count(text) == 1


def test_the_broker_is_told_the_rack_of_the_reader(secured: Secured, topic_family: str) -> None:
    kafka = secured.plain()
    produce(kafka, topic_family, [Sent(b"s", b"x")])
    racked = kafka.model_copy(update={"options": {"client.rack": "rack-of-the-reader"}})

    reader = make_consumer(make_reader_configuration(racked))
    found = [run for run in read_ranges(reader, [Range(topic_family, 0, 0, 1)]) if isinstance(run, MessageRun)]
    reader.close()

    assert sum(len(run.messages) for run in found) == 1
    deadline = time.monotonic() + LOGGED_SECONDS_MAX
    while '"rackId":"rack-of-the-reader"' not in secured.requests():
        assert time.monotonic() < deadline, "no fetch named the rack"
        time.sleep(0.1)
