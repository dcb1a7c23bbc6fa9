"""The result of a class for the topics of one family, compared with the plain fold and the table of verdicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockstep.integrity.resume_options import IntegrityLost
from lockstep.table.ledger import read_ledger
from tests.correctness.verdicts.log_faults import (
    LOG_CLASSES,
    LOG_TABLE,
    READ,
    SNAPSHOT,
    UNTIL,
    Effect,
    LogFault,
    rows_of_offsets,
)
from tests.streams.dydx_books.streams import AsTheyCome, books
from tests.streams.dydx_books.test_through_the_broker import COLUMNS
from tests.support.feed import ProducerRecord
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import first_difference, heads, read_table, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from lockstep.model.finding import Finding
    from lockstep.table.ledger import LedgerRow
    from tests.streams.dydx_books.recording import Message
    from tests.support.feed import Feed


def send(feed: Feed, topic: str, messages: Iterable[Message], partition: int = 0) -> None:
    """Append messages with their times."""
    feed.append(topic, [ProducerRecord(each.key, each.value, each.timestamp_ms) for each in messages], partition)


@dataclass(frozen=True)
class Log:
    """The result of a class for the topics of one family.

    Attributes:
        runs: Its runs.
        findings: The findings that halted it.
    """

    runs: LocalRuns
    findings: tuple[Finding, ...]

    def rows(self, topic: str, partition: int = 0) -> list[tuple[object, ...]]:
        """Return the rows of a partition, in the order of the table."""
        table = read_table(self.runs.folders.table)
        return rows_of(table.filter([held == partition for held in table["_partition"].to_pylist()]), topic, COLUMNS)

    def ledger(self, topic: str, partition: int = 0) -> list[LedgerRow]:
        """Return the ledger rows of a partition."""
        rows = read_ledger(self.runs.folders.ledger)
        return [row for row in rows if (row.topic, row.partition) == (topic, partition)]

    def holes(self, topic: str) -> list[tuple[int, int, str]]:
        """Return the ranges of offsets without messages, each with its cause."""
        return [(hole.start, hole.until, hole.cause) for row in self.ledger(topic) for hole in row.holes]


def runs_of(family: str, name: str, broker: Broker, root: Path) -> LocalRuns:
    stream = replace(books(rf"{family}\..+", LOG_CLASSES[name], AsTheyCome()), name=name.replace(" ", "_"))
    return LocalRuns(stream, broker.bootstrap_servers, root)


def halted_by(runs: LocalRuns) -> tuple[Finding, ...]:
    """Run the stream; return the findings that halted it, if any."""
    try:
        runs.run()
    except IntegrityLost as lost:
        return lost.findings
    return ()


def assert_rows(found: Log, topic: str, effect: Effect, goes_on: list[range]) -> None:
    """Assert the rows of the table; a halt for another topic also stops this topic at its position."""
    expected = {
        Effect.GOES_ON: goes_on,
        Effect.SUSPENDS: [range(READ), range(SNAPSHOT, UNTIL)],
        Effect.HALTS: [range(READ)],
    }[Effect.HALTS if found.findings else effect]
    assert first_difference(rows_of_offsets(*expected), found.rows(topic)) is None


def assert_halted(found: Log, topic: str, fault: LogFault, offsets: tuple[int, int]) -> None:
    """Assert whether the class halts for this fault, and with which evidence."""
    told = {(each.cause, each.offset, each.until) for each in found.findings if each.topic == topic}
    halts = LOG_TABLE[fault][found.runs.stream.name.replace("_", " ")] is Effect.HALTS
    assert told == ({(fault.value, *offsets)} if halts else set())
    assert heads(found.runs.folders.table)[-1]["desired"] == ("halted" if found.findings else "bounded")
