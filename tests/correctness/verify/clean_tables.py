"""Tables made by the real engine on a real Kafka, each from a seed: classes, splits, restarts, tolerated faults.

The engine's own tests show that these tables are correct; a violation that a proof finds in them is a false alarm.
"""

from __future__ import annotations

import dataclasses
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from lockstep import (
    Checksum,
    FirstSnapshot,
    Limits,
    Linked,
    LogOnly,
    NoIntegrity,
    Once,
    OnGrowth,
    Ordered,
    Sequence,
    Strict,
    Suspend,
    Topics,
)
from lockstep.integrity.resume_options import AcceptLoss, FromSnapshot, IntegrityLost, SkipSession
from lockstep.integrity.strict import Repeats
from lockstep.operations.resume import resume_stream
from lockstep.table import delta_log
from tests.correctness.verify.producing import FAULTS, Producing, Sent, encoded
from tests.correctness.verify.streams import bookings
from tests.support.feed import ANSWER_SECONDS, Feed, ProducerRecord, kept_admin
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lockstep.integrity.base import IntegrityClass
    from lockstep.integrity.resume_options import Acceptance
    from lockstep.model.finding import Finding

CLASSES: Mapping[str, IntegrityClass] = {
    "sequence": Strict(evidence=Sequence()),
    "sequence, suspending": Strict(evidence=Sequence(), on_violation=Suspend()),
    "linked": Strict(evidence=Linked()),
    "linked, suspending": Strict(evidence=Linked(), on_violation=Suspend()),
    "checksum, suspending": Strict(evidence=Checksum(), on_violation=Suspend()),
    "log only": Strict(evidence=LogOnly()),
    "ordered": Ordered(on_growth=OnGrowth.RESTART_SESSIONS),
    "ordered, halting": Ordered(on_violation=Strict(evidence=Sequence()).on_violation),
    "none": NoIntegrity(),
    "once": Once(keep_ids=20),
    "repeats dropped": Strict(evidence=Sequence(), repeats=Repeats.DROP),
    "repeats dropped, suspending": Strict(evidence=Linked(), repeats=Repeats.DROP, on_violation=Suspend()),
    "wrapping": Strict(evidence=Sequence(wraps_at=16)),
    "wrapping, suspending": Strict(evidence=Sequence(wraps_at=16), on_violation=Suspend(accept_loss=True)),
}
HALTING: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("sequence", "linked", "log only", "wrapping"), ()),
    "repeats dropped": ("again",),
    "once": ("garbage", "null", "keyless", "poison", "unfit", "total", "unknown", "gap", "again"),
}
"""Classes that stop at faults that the others tolerate, with the faults that they tolerate."""


@dataclass
class Made:
    """A finished table.

    Attributes:
        runs: Its stream and folders.
        told: Its history, for the message of a test that fails.
    """

    runs: LocalRuns
    told: list[str]


class CleanTable:
    """Makes one table from a seed."""

    def __init__(
        self, seed: int, bootstrap_servers: str, root: Path, *, expires: bool = True, joins: bool = False
    ) -> None:
        self._rng = rng = random.Random(seed)  # noqa: S311  # reproducible
        self._expires = expires
        self._joins = joins
        self._feed = Feed(bootstrap_servers, f"clean_{root.name}_{seed}")
        names = list(CLASSES)
        self._class = names[seed % len(names)]
        stream = bookings(self._feed.pattern, CLASSES[self._class])
        if joins:
            stream = dataclasses.replace(stream, topics=Topics(pattern=self._feed.pattern, start=FirstSnapshot()))
        limits = Limits(batch_messages=rng.choice((4, 9, 30, 1000)), quarantine_burst=10_000)
        self._made = Made(LocalRuns(stream, bootstrap_servers, root).with_limits(limits), [f"{seed}: {self._class}"])
        self._halts = self._class in HALTING
        self._linked = isinstance(getattr(CLASSES[self._class], "evidence", None), Linked)
        self._wraps_at = 16 if "wrapping" in self._class else None
        self._faults = HALTING.get(self._class, FAULTS)
        self._producing: dict[tuple[str, int], Producing] = {}

    def make(self) -> Made:
        """Create topics, then run up to three times with new messages and faults before each run."""
        self._create_topics()
        runs = self._rng.choice((1, 2, 2, 3))
        for number in range(runs):
            self._send()
            if self._joins and not number:
                self._expire_read()
            if self._expires and number and self._rng.random() < 0.3:
                self._expire_unread()
            if self._class == "ordered" and number and self._rng.random() < 0.4:
                self._grow()
            if self._halts and number == runs - 1 and self._rng.random() < 0.6:
                self._break_promise()
            if not self._run():
                break
        if self._expires and self._rng.random() < 0.3:
            self._expire_read()
        return self._made

    def _create_topics(self) -> None:
        for number in range(self._rng.randrange(1, 3)):
            partitions = self._rng.randrange(1, 4)
            topic = self._feed.create(f"t{number}", partitions=partitions)
            for partition in range(partitions):
                self._producing[topic, partition] = self._producing_of(partition)

    def _producing_of(self, partition: int) -> Producing:
        sessions = tuple(f"{name}{partition}" for name in "abc")
        return Producing(self._rng, self._faults, self._linked, self._wraps_at, sessions)

    def _tell(self, what: str) -> None:
        self._made.told.append(what)

    def _send(self) -> None:
        for (topic, partition), producing in self._producing.items():
            if partition == 0 and self._rng.random() < 0.3:
                self._send_in_transactions(topic, producing)
            some = [producing.next() for _ in range(self._rng.randrange(0, 40))]
            self._feed.append(topic, [ProducerRecord(sent.key, sent.value) for sent in some], partition)

    def _send_in_transactions(self, topic: str, producing: Producing) -> None:
        """Send a committed and an aborted transaction; the numbers of the aborted messages are used again."""
        self._tell(f"transactions in {topic}")
        producer = self._feed.transactional()
        for commits in (True, False):
            before = dict(producing.at), dict(producing.counted)
            producer.begin_transaction()
            for _ in range(self._rng.randrange(1, 4)):
                sent = producing.next()
                producer.produce(topic, value=sent.value, key=sent.key, partition=0)
            assert producer.flush(ANSWER_SECONDS) == 0
            self._feed.end_transaction(producer, topic, commits=commits)
            if not commits:
                producing.at, producing.counted = before

    def _run(self) -> bool:
        """Run the stream; return False if it halted and was not resumed."""
        try:
            self._made.runs.run()
        except IntegrityLost as lost:
            self._tell(f"halted: {lost.findings[0]}")
            return self._rng.random() < 0.8 and self._resume(lost)
        return True

    def _resume(self, lost: IntegrityLost) -> bool:
        """Accept the findings that halted the stream, and continue for a while; return False if it halts again."""
        accepted = [self._accepted(finding) for finding in lost.findings]
        resume_stream(self._made.runs.folders, why="test", who="test", accepted=accepted)
        self._tell(f"accepted {accepted}")
        with suppress(IntegrityLost):
            self._made.runs.run()
            self._send()
            self._made.runs.run()
            return True
        return False

    def _accepted(self, finding: Finding) -> Acceptance:
        ways: list[Acceptance] = [
            AcceptLoss(finding.topic, finding.partition, finding.offset, finding.until),
            FromSnapshot(finding.topic, finding.partition),
        ]
        if finding.session is not None:
            ways.append(SkipSession(finding.topic, finding.partition, finding.session))
        return self._rng.choice([way for way in ways if way.covers(finding)])

    def _break_promise(self) -> None:
        topic, partition = self._rng.choice(list(self._producing))
        kinds = ("garbage", "poison") if self._class == "log only" else ("garbage", "poison", "gap", "unknown")
        sent = self._producing[topic, partition].fault(self._rng.choice(kinds), f"a{partition}")
        after = Sent(f"b{partition}", encoded("skip", None))
        both = [ProducerRecord(each.key, each.value) for each in (sent, after)]
        self._feed.append(topic, both, partition)

    def _expire_unread(self) -> None:
        """Expire messages before they are read, only if the class continues after that."""
        if self._class not in {"ordered", "none", "ordered, halting"}:
            return
        topic, partition = self._rng.choice(list(self._producing))
        self._delete_before(topic, partition, self._end(topic, partition) - self._rng.randrange(0, 4))

    def _expire_read(self) -> None:
        """Expire messages that were read, or that precede the first run."""
        for topic, partition in self._producing:
            self._delete_before(topic, partition, self._rng.randrange(0, self._end(topic, partition) + 1))

    def _grow(self) -> None:
        topic = next(topic for topic, _ in self._producing)
        partitions = 1 + max(partition for name, partition in self._producing if name == topic)
        self._feed.grow(topic, partitions + 1)
        self._producing[topic, partitions] = self._producing_of(partitions)
        self._tell(f"{topic} grew")

    def _delete_before(self, topic: str, partition: int, offset: int) -> None:
        admin = kept_admin(self._feed.bootstrap_servers)
        where = TopicPartition(topic, partition, max(0, offset))
        admin.delete_records([where])[where].result(ANSWER_SECONDS)
        self._tell(f"{topic}/{partition} expired before {offset}")

    def _end(self, topic: str, partition: int) -> int:
        settings = {"bootstrap.servers": self._feed.bootstrap_servers, "group.id": "clean", "log_level": 2}
        consumer = Consumer(settings)
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_SECONDS)[1])
        finally:
            consumer.close()


def clean_table(seed: int, bootstrap_servers: str, root: Path, *, expires: bool = True, joins: bool = False) -> Made:
    """Make a table from a seed.

    Args:
        seed: Decides everything.
        bootstrap_servers: The broker.
        root: Folder of the table; its name becomes part of the topic names.
        expires: Whether Kafka may lose messages, before or after they were read.
        joins: Whether the stream joins its logs in the middle.
    """
    made = CleanTable(seed, bootstrap_servers, root, expires=expires, joins=joins).make()
    assert delta_log.has_log(made.runs.folders.table)
    return made
