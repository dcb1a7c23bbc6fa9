"""Tables of meters, each from a seed, by the real engine on a real Kafka: windows, timers, snapshots in parts."""

from __future__ import annotations

import dataclasses
import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from lockstep import Checksum, FuzzyWindow, Halt, Limits, NoIntegrity, Once, Ordered, Sequence, Strict, Suspend
from lockstep.declare.rules import Rule
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.integrity.verdict import Judgement
from lockstep.model.fault import Fault
from lockstep.table import delta_log
from tests.correctness.verify.clean_tables import Made
from tests.correctness.verify.metering import FAULTS, Metering
from tests.correctness.verify.meters import SILENT, metering
from tests.support.feed import Feed, ProducerRecord
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lockstep.integrity.base import IntegrityClass

LATENESS = timedelta(seconds=5)
Kind = tuple["IntegrityClass", str, bool, int]
"""Class, transform, whether messages have numbers, and how far they are out of order."""
KINDS: Mapping[str, Kind] = {
    "window": (FuzzyWindow(lateness=LATENESS), "plain", True, 6),
    "window, timed": (FuzzyWindow(lateness=LATENESS), "late", True, 6),
    "window without numbers": (FuzzyWindow(lateness=LATENESS), "timed", False, 6),
    "window, halting": (FuzzyWindow(lateness=LATENESS, on_violation=Halt()), "late", True, 6),
    "reordered": (FuzzyWindow(lateness=LATENESS, reorder=True), "plain", True, 6),
    "reordered, timed": (FuzzyWindow(lateness=LATENESS, reorder=True), "timed", True, 6),
    "reordered by time": (FuzzyWindow(lateness=LATENESS, reorder=True), "late", False, 6),
    "reordered, watermarked": (FuzzyWindow(lateness=LATENESS, reorder=True), "watermarked", True, 6),
    "strict": (Strict(evidence=Sequence()), "timed", True, 0),
    "strict, suspending": (Strict(evidence=Sequence(), on_violation=Suspend()), "timed", True, 0),
    "checksum, suspending": (Strict(evidence=Checksum(), on_violation=Suspend()), "watermarked", True, 0),
    "ordered": (Ordered(), "plain", True, 0),
    "ordered, timed": (Ordered(), "timed", True, 2),
    "once": (Once(keep_ids=20), "timed", True, 2),
    "none": (NoIntegrity(), "timed", True, 2),
}
BORNE: Mapping[str, tuple[str, ...]] = {
    "strict": (),
    "window, halting": ("garbage", "keyless", "again", "poison", "unknown"),
}
"""The tolerated faults of kinds that do not tolerate all; `Once` stops at repeated numbers."""


class CleanMeters:
    """Makes one table from a seed."""

    def __init__(
        self, seed: int, bootstrap_servers: str, root: Path, *, expires: bool = True, rules: tuple[Rule, ...] = ()
    ) -> None:
        self._rng = rng = random.Random(seed)  # noqa: S311  # reproducible
        self._feed = Feed(bootstrap_servers, f"meters_{root.name}_{seed}")
        self._expires = expires
        kinds = [kind for kind, (integrity, *_) in KINDS.items() if not rules or may_leave_out(integrity)]
        self._kind = kinds[seed % len(kinds)]
        integrity, transform, self._numbers, self._shuffles = KINDS[self._kind]
        is_silent = rng.random() < 0.5
        stream = metering(self._feed.pattern, integrity, transform, SILENT if is_silent else None)
        stream = dataclasses.replace(stream, rules=rules)
        limits = Limits(batch_messages=rng.choice((4, 9, 30, 1000)), quarantine_burst=10_000)
        told = f"{seed}: {self._kind}{', silent sessions end' if is_silent else ''}"
        self._made = Made(LocalRuns(stream, bootstrap_servers, root).with_limits(limits), [told])
        self._metering: dict[tuple[str, int], Metering] = {}

    def make(self) -> Made:
        """Create topics, then run up to three times with new messages before each run."""
        self.create_topics()
        for _ in range(self._rng.choice((1, 2, 3))):
            self._send()
            with suppress(IntegrityLost):
                self._made.runs.run()
                continue
            self._made.told.append("halted")
            break
        if self._expires and self._rng.random() < 0.3:
            self._expire()
        return self._made

    def create_topics(self) -> None:
        """Create one or two topics with one or two partitions."""
        for number in range(self._rng.randrange(1, 3)):
            partitions = self._rng.randrange(1, 3)
            topic = self._feed.create(f"t{number}", partitions=partitions)
            for partition in range(partitions):
                self._metering[topic, partition] = self._of(partition)

    def _of(self, partition: int) -> Metering:
        faults = BORNE.get(self._kind, FAULTS)
        parts = self._rng.random() < 0.6
        sessions = tuple(f"{name}{partition}" for name in "abc")
        return Metering(self._rng, faults, self._numbers, parts, self._shuffles, sessions)

    def _send(self) -> None:
        for (topic, partition), each in self._metering.items():
            some = each.some(self._rng.randrange(0, 60))
            self._feed.append(topic, [ProducerRecord(sent.key, sent.value) for sent in some], partition)

    def _expire(self) -> None:
        for (topic, partition), each in self._metering.items():
            offset = self._rng.randrange(0, 1 + len(each.last))
            self._feed.expire(topic, offset, partition)
            self._made.told.append(f"{topic}/{partition} expired before {offset}")


def may_leave_out(integrity: IntegrityClass) -> bool:
    """Whether a class lets a rule quarantine messages."""
    return integrity.judge(Fault.TRANSFORM_FAILED) is not Judgement.VIOLATION


def clean_meters(
    seed: int, bootstrap_servers: str, root: Path, *, expires: bool = True, rules: tuple[Rule, ...] = ()
) -> Made:
    """Make a table of meters from a seed.

    Args:
        seed: Decides everything.
        bootstrap_servers: The broker.
        root: Folder of the table; its name becomes part of the topic names.
        expires: Whether Kafka may lose messages after they were read.
        rules: Rules of the stream.
    """
    made = CleanMeters(seed, bootstrap_servers, root, expires=expires, rules=rules).make()
    assert delta_log.has_log(made.runs.folders.table)
    return made
