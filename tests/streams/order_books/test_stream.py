"""The real stream through real Kafka and Spark: project, plain fold and exchange agree, row by row."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from assets.order_books import order_books
from lockstep import AvailableNow, Topics
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from lockstep.features.localdev.producer import produce
from lockstep.features.localdev.recordings import read_recorded_books, read_recorded_days, to_received, to_sent
from lockstep.integrity.resume_options import IntegrityLost, StreamHalted
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.layout import StreamFolders
from tests.streams.order_books.expected_rows import COLUMNS, expected_rows
from tests.streams.order_books.oracle import BestPrices, Oracle
from tests.streams.order_books.plain_fold import BID, Book, Change
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import first_difference, heads, named_files, read_table, read_until, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from lockstep.declare.stream import AnyStream
    from lockstep.features.localdev.broker import Broker
    from lockstep.features.localdev.recordings import Recorded, Sent


# Differences of spot_btcusdt (`u`) whose last best-price ticker was never recorded. The book is right.
TICKER_NEVER_CAME = (50093478174, 50093480542)


@pytest.fixture(scope="module")
def context(shared_spark: SparkSession) -> SparkContext:
    """The shared Spark for the runs of this module."""
    found: SparkContext = shared_spark.sparkContext
    return found


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs of the stream over the topics of one test, optionally without the hot copies of state."""

    family: str
    broker: Broker
    root: Path
    context: SparkContext

    @property
    def stream(self) -> AnyStream:
        """The real declaration, on the topics of this test alone."""
        return dataclasses.replace(order_books, topics=Topics(pattern=rf"{self.family}\..+"))

    @property
    def folders(self) -> StreamFolders:
        """Folders of the stream's tables."""
        return StreamFolders(order_books.name, self.root / "tables")

    def topic(self, book: str) -> str:
        """The topic of a book."""
        return f"{self.family}.{book}"

    def produce(self, book: str, messages: Sequence[Recorded]) -> None:
        """Append messages to a book's topic."""
        assert produce(self.broker.bootstrap_servers, self.topic(book), messages) == len(messages)

    def run(self) -> RunOutcome:
        """Run the stream over all available messages."""
        settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=self.broker.bootstrap_servers),
            table_root=self.root / "tables",
            local_root=self.root / "local",
        )
        return run_stream(
            self.stream, settings, spark=lambda: self.context, stop=threading.Event(), trigger=AvailableNow()
        )

    def run_without_spark(self) -> RunOutcome:
        """Run the stream over all available messages, with tasks in this process."""
        return LocalRuns(self.stream, self.broker.bootstrap_servers, self.root).run()

    def lose_hot_copies(self) -> None:
        """Delete the hot copies, as if the next run used another machine."""
        shutil.rmtree(self.root / "local")


@pytest.fixture
def runs(broker: Broker, topic_family: str, tmp_path: Path, context: SparkContext) -> Runs:
    return Runs(topic_family, broker, tmp_path, context)


def test_project_plain_fold_and_exchange_agree_over_midnight(
    runs: Runs, recordings: Path, both_days: Callable[[str], Sent]
) -> None:
    """Day 1 in one run; half of day 2 in a second, on Spark; the rest in a third, which has no hot copy of state."""
    sent = {book: both_days(book) for book in read_recorded_books(recordings)}
    produce_part(runs, recordings, sent, 0, 0)
    assert runs.run_without_spark() is RunOutcome.ENDED
    produce_part(runs, recordings, sent, 0, 1)
    assert runs.run() is RunOutcome.ENDED
    runs.lose_hot_copies()
    produce_part(runs, recordings, sent, 1, 2)
    assert runs.run_without_spark() is RunOutcome.ENDED
    table = read_table(runs.folders.table)
    for book, both in sent.items():
        rows = rows_of(table, runs.topic(book), COLUMNS)
        assert first_difference(expected_rows(message.value for message in both.messages), rows) is None
        assert disagreements(rows, both) == (TICKER_NEVER_CAME if book == "spot_btcusdt" else ())
        assert read_until(runs.folders.ledger, runs.topic(book)) == len(both.messages)
    assert_accounted(read_table(runs.folders.ledger))


def test_the_second_day_alone_is_refused_by_name(runs: Runs, recordings: Path) -> None:
    day_2 = to_sent(read_recorded_days(recordings, "spot_ethusdt")[1:]).messages
    runs.produce("spot_ethusdt", day_2[:100])
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    (finding,) = lost.value.findings
    assert (finding.cause, finding.topic, finding.partition, finding.offset, finding.session) == (
        "unknown session",
        runs.topic("spot_ethusdt"),
        0,
        0,
        "spot_ethusdt",
    )
    assert (finding.expected, finding.found) == ("a snapshot first", "update of a session without snapshot")
    assert f"lockstep resume order_books --skip-session {finding.topic}/0/spot_ethusdt" in lost.value.next_step
    assert named_files(runs.folders.table) == []


def test_a_late_snapshot_halts_its_partition_after_what_precedes_it_and_no_other(runs: Runs, recordings: Path) -> None:
    """The recording as received has differences before its snapshot; another book precedes it in its partition."""
    before = to_sent(read_recorded_days(recordings, "spot_btcusdt")).messages[:120]
    late = to_received(read_recorded_days(recordings, "cm_btcusd_perp"))[:80]
    other = to_sent(read_recorded_days(recordings, "spot_ethusdt")).messages[:150]
    runs.produce("cm_btcusd_perp", [*before, *late])
    runs.produce("spot_ethusdt", other)
    with pytest.raises(IntegrityLost, match=r"unknown session at .*cm_btcusd_perp/0 offset 120"):
        runs.run()
    assert_committed(runs, "cm_btcusd_perp", before)
    assert_committed(runs, "spot_ethusdt", other)
    halt = heads(runs.folders.table)[-1]
    assert (halt["desired"], halt["findings"][0]["session"]) == ("halted", "cm_btcusd_perp")
    with pytest.raises(StreamHalted, match=r"unknown session at .*cm_btcusd_perp/0 offset 120"):
        runs.run()
    assert heads(runs.folders.table)[-1] == halt


def produce_part(runs: Runs, recordings: Path, sent: Mapping[str, Sent], start: int, until: int) -> None:
    for book, both in sent.items():
        runs.produce(book, part_of(both.messages, recordings, book, start, until))


def part_of(messages: Sequence[Recorded], recordings: Path, book: str, start: int, until: int) -> Sequence[Recorded]:
    """Return day 1 for (0, 0); otherwise halves of day 2 from `start` to `until`."""
    day_1 = len(to_sent(read_recorded_days(recordings, book)[:1]).messages)
    if until == 0:
        return messages[:day_1]
    half = (len(messages) - day_1) // 2
    return messages[day_1 + start * half : day_1 + half if until == 1 else None]


def disagreements(rows: Sequence[tuple[object, ...]], sent: Sent) -> tuple[int, ...]:
    """Return the updates after which the book rebuilt from the table's rows differs from the exchange's best prices."""
    oracle = Oracle(ticker.value for ticker in sent.tickers)
    book = Book()
    book.take(sent.messages[0].value)
    prices = BestPrices(book)
    changes = changes_by_offset(rows)
    wrong = []
    for offset, message in enumerate(sent.messages[1:], start=1):
        for change in changes[offset]:
            apply(book, change)
        prices.note(changes[offset])
        if oracle.at(message.last_id)[1] != prices.now():
            wrong.append(message.last_id)
    return tuple(wrong)


def changes_by_offset(rows: Sequence[tuple[object, ...]]) -> dict[int, list[Change]]:
    changes: dict[int, list[Change]] = defaultdict(list)
    for offset, _, side, _, price, quantity, previous in rows:
        assert isinstance(offset, int)
        changes[offset].append(Change(str(side), str(price), text(previous), text(quantity)))
    return changes


def apply(book: Book, change: Change) -> None:
    """Change the book by a row, whose previous quantity must equal the book's."""
    prices = book.bids if change.side == BID else book.asks
    assert prices.pop(change.price, None) == change.previous
    if change.quantity is not None:
        prices[change.price] = change.quantity


def text(value: object) -> str | None:
    return None if value is None else str(value)


def assert_committed(runs: Runs, book: str, messages: Sequence[Recorded]) -> None:
    rows = rows_of(read_table(runs.folders.table), runs.topic(book), COLUMNS)
    assert first_difference(expected_rows(message.value for message in messages), rows) is None
    assert read_until(runs.folders.ledger, runs.topic(book)) == len(messages)


def assert_accounted(ledger: pa.Table) -> None:
    """Each offset read is a message, and each message is in exactly one count."""
    for row in ledger.to_pylist():
        assert row["messages"] == row["until"] - row["start"]
        assert row["holes"] == []
        assert (row["skipped"], row["dropped"], row["repeats"], row["gaps"]) == (0, 0, 0, 0)
