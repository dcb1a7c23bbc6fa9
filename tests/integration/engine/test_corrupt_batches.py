"""Corrupt record batches on the broker: each is an undecodable range, named and judged by the class."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import NoIntegrity, Ordered, Strict, Suspend
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.driver.retries import PoisonMessageSearch
from lockstep.engine.protocol import BatchIdentity, PlannedRange
from lockstep.integrity.resume_options import AcceptLoss, FromSnapshot, suggest_option
from lockstep.integrity.strict import LogOnly
from lockstep.kafka.client import RangeConsumer, make_reader_configuration
from lockstep.kafka.reader import (
    Corrupt,
    MessageRun,
    Range,
    Readable,
    UnreadableRange,
    find_first_readable,
    read_ranges,
)
from lockstep.model.position import Position
from lockstep.operations.inspect.status import read_status
from lockstep.settings import KafkaSettings
from tests.integration.engine.test_expired import holes
from tests.support.adding_stream import adding
from tests.support.feed import folded, snapshot, update
from tests.support.resuming import halted, resumed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

    from lockstep.features.localdev.broker import Broker
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

VALUES = [snapshot(1, a=1), *(update(seq, a=1) for seq in range(2, 8)), snapshot(8, a=5), update(9, a=1)]
CORRUPT, FINE = 4, 6
"""Offsets 4 and 5 are one record batch, like every other pair of offsets."""
VERSION, IN_A_RECORD = 16, 75
"""Positions in a record batch: its version in the header, before the checksum, and a byte of its first record."""


def header_of(data: bytes, wanted: int) -> int:
    """Return the position of an offset's record batch in a segment."""
    at = 0
    while True:
        base, length = struct.unpack_from(">qi", data, at)
        if base == wanted:
            return at
        at += 12 + length


def overwrite(broker: Broker, topic: str, at: int, place: int, new: bytes) -> None:
    """Overwrite bytes of a record batch on the disk of the broker."""
    segment = broker.folder / "data" / f"{topic}-0" / f"{0:020d}.log"
    with segment.open("r+b") as file:
        os.pwrite(file.fileno(), new, header_of(segment.read_bytes(), at) + place)


@pytest.fixture
def sick(broker: Broker, feed: Feed) -> str:
    """A topic with a corrupt record batch in its middle."""
    return sick_topic(broker, feed, IN_A_RECORD, b"?")


def sick_topic(broker: Broker, feed: Feed, place: int, new: bytes) -> str:
    topic = feed.create("values")
    for at in range(0, len(VALUES), 2):
        feed.send(topic, VALUES[at : at + 2])
    overwrite(broker, topic, CORRUPT, place, new)
    return topic


def rows_of(*offsets: int) -> list[tuple[object, ...]]:
    return folded([(at, "s", VALUES[at]) for at in offsets])


def test_a_strict_stream_halts_by_their_offsets_and_goes_on_as_resumed(sick: str, runs: LocalRuns) -> None:
    """A bounded run must not retry forever a range that ends before the corrupt offsets."""
    runs = runs.of(adding(runs.stream.topics.pattern, Strict(evidence=LogOnly())))
    (finding,) = halted(runs)
    assert (finding.cause, finding.offset, finding.until) == ("undecodable", CORRUPT, FINE)
    assert "offset 4" in finding.detail
    assert suggest_option(finding) == AcceptLoss(sick, 0, CORRUPT, FINE)
    resumed(runs, FromSnapshot(sick, 0, CORRUPT, FINE))
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(sick) == rows_of(0, 1, 2, 3, 7, 8)
    assert holes(runs, sick) == [(CORRUPT, FINE, "corrupt")]
    assert read_status(runs.handle).lag_messages == 0


def test_where_the_broker_fails_at_a_corrupt_header_all_behind_it_is_named(
    broker: Broker, feed: Feed, runs: LocalRuns
) -> None:
    """The broker reads a version below 2 as an older format, and the checksum's first byte as an unknown codec."""
    topic = sick_topic(broker, feed, VERSION, b"\xff\x07")
    runs = runs.of(adding(feed.pattern, Strict(evidence=LogOnly())))
    (finding,) = halted(runs)
    assert (finding.cause, finding.offset, finding.until) == ("undecodable", CORRUPT, len(VALUES))
    resumed(runs, suggest_option(finding))
    feed.send(topic, [snapshot(20, a=1)])
    assert [(each.offset, each.until) for each in halted(runs)] == [(len(VALUES), len(VALUES) + 1)]
    assert runs.rows(topic) == rows_of(0, 1, 2, 3)


@pytest.mark.parametrize("header", [b"\x03", b"\xff\x00", b"\x00\x00"])
def test_a_batch_of_another_version_is_passed_over_alone(
    broker: Broker, feed: Feed, runs: LocalRuns, header: bytes
) -> None:
    """The broker sends a batch of a newer version for each of its offsets; the client is silent from the second."""
    topic = sick_topic(broker, feed, VERSION, header)
    runs = runs.of(adding(feed.pattern, Strict(evidence=LogOnly())))
    (finding,) = halted(runs)
    assert (finding.cause, finding.offset, finding.until) == ("undecodable", CORRUPT, FINE)
    resumed(runs, AcceptLoss(topic, 0, CORRUPT, FINE))
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic) == rows_of(0, 1, 2, 3, 6, 7, 8)


class LateConsumer(RangeConsumer):
    """A consumer whose messages have all arrived before its first poll."""

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        time.sleep(1)
        return super().consume(num_messages, timeout)


def test_messages_behind_a_corrupt_batch_never_come_before_it(broker: Broker, feed: Feed) -> None:
    """They arrive in one list with it. Reading them first would make the batch a gap between messages."""
    topic = sick_topic(broker, feed, IN_A_RECORD, b"?")
    consumer = LateConsumer(make_reader_configuration(KafkaSettings(bootstrap_servers=feed.bootstrap_servers)))
    try:
        *read, last = read_ranges(consumer, [Range(topic, 0, 0, len(VALUES))])
    finally:
        consumer.close()
    assert [(run.reached, run.gaps) for run in read if isinstance(run, MessageRun)][-1] == (CORRUPT, [])
    assert isinstance(last, UnreadableRange)
    assert last.is_corrupt


def test_what_is_corrupt_can_be_passed_over_alone(sick: str, runs: LocalRuns) -> None:
    runs = runs.of(adding(runs.stream.topics.pattern, Strict(evidence=LogOnly())))
    halted(runs)
    resumed(runs, AcceptLoss(sick, 0, CORRUPT, FINE))
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(sick) == rows_of(0, 1, 2, 3, 6, 7, 8)


def test_best_effort_passes_over_them_and_counts_them(sick: str, runs: LocalRuns) -> None:
    assert runs.of(adding(runs.stream.topics.pattern, NoIntegrity())).run() is RunOutcome.ENDED
    assert runs.rows(sick) == rows_of(0, 1, 2, 3, 6, 7, 8)
    assert holes(runs, sick) == [(CORRUPT, FINE, "corrupt")]


@pytest.mark.parametrize("strict", [True, False])
def test_sessions_that_may_have_lost_something_wait_for_a_snapshot(sick: str, runs: LocalRuns, *, strict: bool) -> None:
    integrity = Strict(evidence=LogOnly(), on_violation=Suspend()) if strict else Ordered()
    assert runs.of(adding(runs.stream.topics.pattern, integrity)).run() is RunOutcome.ENDED
    assert runs.rows(sick) == rows_of(0, 1, 2, 3, 7, 8)


READ = """
import sys
from lockstep.engine.executor.task import KafkaSource
from lockstep.kafka.client import make_reader_configuration
from lockstep.kafka.reader import MessageRun, Range
from lockstep.settings import KafkaSettings

log = KafkaSource(make_reader_configuration(KafkaSettings(bootstrap_servers=sys.argv[1])))
for run in log.read([Range(sys.argv[2], 0, 0, 9, single_batches=True)]):
    print(run.reached if isinstance(run, MessageRun) else run.is_corrupt)
"""


def test_a_batch_at_which_the_client_ends_its_process_is_named_once_batches_are_read_one_by_one(
    broker: Broker, feed: Feed
) -> None:
    """Zeros on the disk, as after a power loss, fetched with the batches before them: the client's assertion fails."""
    topic = sick_topic(broker, feed, 0, bytes(70))
    command = [sys.executable, "-c", READ, feed.bootstrap_servers, topic]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stdout.split()[-1]) == (0, "True"), said.stderr
    item = PlannedRange(Position(topic=topic, topic_id="id", partition=0, next_offset=0), 9)
    batch = BatchIdentity(generation=1, epoch=1, number=1, commit_hour="")
    plan = BatchPlan(batch=batch, bins=((item,),), unavailable=(), backlog=0)
    suspect = PoisonMessageSearch().failed(plan)
    assert suspect is not None
    suspect = suspect.failed(plan)
    assert suspect is not None
    assert [part.bins[0][0].single_batches for part in suspect.parts(plan)] == [True]
    assert suspect.is_in(plan)
    assert not suspect.is_in(msgspec.structs.replace(plan, bins=()))  # its partition has no leader


@pytest.mark.parametrize("end", [5, 6, 70, 71, 500, 5_000, 9_999, 10_000])
def test_the_end_is_found_in_few_looks(end: int) -> None:
    looks: list[int] = []

    def look(offset: int) -> Readable | Corrupt:
        looks.append(offset)
        return Readable(offset) if offset >= end else Corrupt()

    assert find_first_readable(look, 4, 10_000) == end
    assert len(looks) <= 100


@pytest.mark.parametrize(("start", "corrupt", "end"), [(4, 5, 6), (4, 80, 500), (4, 500, 10_000)])
def test_offsets_passed_over_on_the_way_to_the_first_message_belong_to_the_corrupt_ones(
    start: int, corrupt: int, end: int
) -> None:
    """A fetch within a batch of an unknown version returns the messages after the batch."""

    def look(offset: int) -> Readable | Corrupt:
        return Corrupt() if offset < corrupt else Readable(max(offset, end))

    assert find_first_readable(look, start, 10_000) == end


def test_what_reads_well_the_next_time_is_not_corrupt() -> None:
    answers: Iterator[Readable | Corrupt] = iter((Corrupt(), Readable(4)))
    assert find_first_readable(lambda _: next(answers), 4, 10) == 4
    assert find_first_readable(lambda _: None, 4, 10) is None
