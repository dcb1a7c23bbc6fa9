"""Proves why offsets held no message, by reads of the log that show more than a committed read does.

Three things leave offsets without a message: an aborted transaction, the control record that ends a transaction (its
marker), and a record that is gone, for example by compaction. An uncommitted read gives the messages of aborted
transactions. Control records are given to no application, but the client counts them, and says in a log line of each
fetch how many records there were up to which offset. Where a fetch had a record for each of its offsets, none is gone:
what gave no message is a control record. Where it had fewer, the offsets in question are fetched batch by batch: a
batch of one record that is a control record is the marker itself. The topic's settings prove nothing: a topic that is
only deleted today may have been compacted yesterday.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from lockstep.integrity.finding import Hole
from lockstep.kafka.client import Configuration, RangeConsumer
from lockstep.kafka.heard import Heard
from lockstep.kafka.reader import Range, Unreadable, read

ATTEMPTS = 2
"""A read gives up after 30 seconds of silence; a broker that bounces is back in the second one."""
RUNS_MAX = 1_000
"""Runs of offsets fetched batch by batch: some milliseconds each. Where more are in question most are gone anyway."""
UNPROVEN = "unproven"
DEBUG, DEBUG_LEVEL = 7, 10
"""The level of debugging, as librdkafka counts and as its Python client gives it to a logger."""
_ENQUEUED = re.compile(
    r"Enqueue (?P<records>\d+) message\(s\) .*last_offset (?P<last>-?\d+), (?P<control>\d+) ctrl msgs"
)

Gaps = Sequence[tuple[int, int]]
"""[start, until) of offsets that gave no message, in offset order."""


class Fetch(msgspec.Struct, frozen=True):
    """One fetch of a partition, as the client tells of it.

    Attributes:
        records: Records in it, control records included, from the offset on that was asked for.
        last: The last offset that it covers.
        control: How many of the records are control records.
    """

    records: int
    last: int
    control: int


class FetchLog(Heard):
    """The fetches of a client that reads one partition, from its log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches: list[Fetch] = []

    def log(self, level: int, form: str, *arguments: object) -> None:
        """A log line; those of the level of debugging are about fetches."""
        if level > DEBUG_LEVEL:
            super().log(level, form, *arguments)
        elif (found := _ENQUEUED.search(form % arguments)) is not None:
            self.fetches.append(Fetch(int(found["records"]), int(found["last"]), int(found["control"])))


class _Prober:
    """A client that shows all of one partition: its messages, committed or not, and how many records each fetch had."""

    def __init__(self, configuration: Configuration) -> None:
        self._log = FetchLog()
        shows_all = {"isolation.level": "read_uncommitted", "debug": "msg"}
        self._client = RangeConsumer({**configuration, **shows_all}, self._log, log_level=DEBUG)

    def look(self, whole: Range) -> tuple[set[int], list[Fetch]] | Unreadable:
        """Offsets that gave a message, and the fetches that showed that; what was seen earlier is forgotten."""
        self._log.fetches.clear()
        seen: set[int] = set()
        for run in read(self._client, [whole]):
            if isinstance(run, Unreadable):
                return run
            seen.update(message.offset() or 0 for message in run.messages)
        return seen, self._log.fetches

    def close(self) -> None:
        """End the client."""
        self._client.close()


def explain(configuration: Configuration, topic: str, partition: int, gaps: Gaps) -> list[Hole] | Unreadable:
    """The gaps with their causes, cut where the cause changes, in offset order.

    "aborted" and "marker" are proven; "unproven" means that nothing explains the offset although the log was read.

    Returns:
        The holes; or why the log could not be read: that is no evidence of anything.
    """
    explained: list[Hole] | Unreadable = []
    for _ in range(ATTEMPTS if gaps else 0):
        explained = _explained(configuration, Range(topic, partition, gaps[0][0], gaps[-1][1]), gaps)
        if not isinstance(explained, Unreadable):
            break
    return explained


def whole_spans(fetches: Iterable[Fetch], start: int) -> Iterator[tuple[int, int]]:
    """[start, until) of the offsets of which each holds a record, by fetches that follow each other from `start` on."""
    for fetch in fetches:
        if fetch.last >= start:
            if fetch.records == fetch.last + 1 - start:
                yield start, fetch.last + 1
            start = fetch.last + 1


def _explained(configuration: Configuration, whole: Range, gaps: Gaps) -> list[Hole] | Unreadable:
    """1. Read all of it once.  2. What is still in question batch by batch.  3. Cut where the cause changes."""
    causes = dict.fromkeys((at for start, until in gaps for at in range(start, until)), UNPROVEN)
    prober = _Prober(configuration)
    try:
        looked = prober.look(whole)  # 1
    finally:
        prober.close()
    if isinstance(looked, Unreadable):
        return looked
    seen, fetches = looked
    causes |= dict.fromkeys(causes.keys() & seen, "aborted")
    for start, until in whole_spans(fetches, whole.start):
        _mark(causes, start, until)
    unreadable = _by_batches(configuration, whole, causes) if UNPROVEN in causes.values() else None  # 2
    return unreadable or list(_holes(causes, gaps))  # 3


def _by_batches(configuration: Configuration, whole: Range, causes: dict[int, str]) -> Unreadable | None:
    """Mark what is proven by fetches of one batch each; why they could not be read, where they could not."""
    prober = _Prober({**configuration, "fetch.message.max.bytes": 1})  # the broker gives one batch all the same
    try:
        for start, until in _runs(causes)[:RUNS_MAX]:
            looked = prober.look(msgspec.structs.replace(whole, start=start, until=until))
            if isinstance(looked, Unreadable):
                return looked
            for fetch in looked[1]:
                if fetch.records == fetch.control == 1:
                    _mark(causes, fetch.last, fetch.last + 1)
    finally:
        prober.close()
    return None


def _mark(causes: dict[int, str], start: int, until: int) -> None:
    """What gave no message and holds a record all the same is a marker."""
    offsets = list(causes)
    for at in offsets[bisect_left(offsets, start) : bisect_left(offsets, until)]:
        if causes[at] == UNPROVEN:
            causes[at] = "marker"


def _runs(causes: Mapping[int, str]) -> list[tuple[int, int]]:
    """[start, until) of offsets in a row that are still unproven."""
    runs: list[tuple[int, int]] = []
    for at in (at for at, cause in causes.items() if cause == UNPROVEN):
        runs[-1:] = [(runs[-1][0], at + 1)] if runs and runs[-1][1] == at else [*runs[-1:], (at, at + 1)]
    return runs


def _holes(causes: Mapping[int, str], gaps: Gaps) -> Iterator[Hole]:
    for start, until in gaps:
        for cause, offsets in groupby(range(start, until), key=causes.__getitem__):
            run = list(offsets)
            yield Hole(start=run[0], until=run[-1] + 1, cause=cause)
