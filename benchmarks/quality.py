"""What a check costs: lockstep's and the stock suite of Great Expectations over one table, and hourly increments."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import psutil
from rich.console import Console

from benchmarks.compaction import HOUR, PARTITIONS, write_small_file
from benchmarks.growth import STREAM
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from lockstep.declare.rules import Rule
from lockstep.engine.driver.committer import Committer
from lockstep.engine.driver.startup import WriterStartup
from lockstep.features.quality.check import RULES, Checked, check_stream
from lockstep.model.position import Position
from lockstep.rules import InRange, InSet, Matches, NotNull
from lockstep.table.commit import BatchCommit
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import LedgerStamp, make_unchanged_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from great_expectations.expectations.expectation import Expectation as GreatExpectation
    from pyspark.sql import DataFrame, SparkSession

SCANS_MAX, INCREMENT_SECONDS_MAX, GROWTH_MAX = 4.0, 1.0, 1.2
PROOF = ("_topic", "_topic_id", "_partition", "_offset", "_emit_offset", "_row", "_session")
PLACE = ["_topic_id", "_partition", "_emit_offset", "_row"]
LIMIT, SENSOR = 1e9, r"^sensor \d+$"
RULES_OF_USER: Sequence[Rule] = (
    NotNull("sensor"),
    Matches("sensor", SENSOR.strip("^$")),
    InRange("value", at_least=-LIMIT, at_most=LIMIT),
    InSet("unit", ["C"]),
    InRange("quality", at_least=1, at_most=5),
)
STOCK_SUITE: Sequence[tuple[str, dict[str, object]]] = (
    ("expect_column_values_to_not_be_null", {"column": "sensor"}),
    ("expect_column_values_to_match_regex", {"column": "sensor", "regex": SENSOR}),
    ("expect_column_values_to_be_between", {"column": "value", "min_value": -LIMIT, "max_value": LIMIT}),
    ("expect_column_values_to_be_in_set", {"column": "unit", "value_set": ["C"]}),
    ("expect_column_values_to_be_between", {"column": "quality", "min_value": 1, "max_value": 5}),
    *[("expect_column_values_to_not_be_null", dict[str, object](column=column)) for column in PROOF],
    ("expect_compound_columns_to_be_unique", {"column_list": PLACE}),
)
"""The user's rules, no nulls in the provenance, and no row twice: it has no expectation for completeness, for agreement
with the ledger, nor for order."""
SCAN, OURS, STOCK = "scan of all columns", "lockstep", "stock suite"


@dataclass(frozen=True)
class Checks:
    """The tables and how often each act is measured.

    Attributes:
        rows: Rows of the large table.
        small_rows: Rows of the small one, whose increments are compared with those of the large one.
        batch_rows: Rows of a batch of either table.
        increment_rows: Rows that an increment checks.
        repeat: Measurements of each act, in turns, after one that does not count.
    """

    rows: int = 1_000_000
    small_rows: int = 100_000
    batch_rows: int = 50_000
    increment_rows: int = 10_000
    repeat: int = 5


class Cost(msgspec.Struct, frozen=True):
    """Cost of one act.

    Attributes:
        cpu_seconds: Of this process and its JVM.
        wall_seconds: From begin to end.
    """

    cpu_seconds: float
    wall_seconds: float


class FailedCheckError(Exception):
    """A check of the sound table did not pass, so its cost means nothing."""


def measure_quality(asked: Checks, spark: SparkSession, *, folder: Path, console: Console) -> Record:
    """Check one table whole by both, in turns with a plain scan; then check increments of it and of a small one."""
    conditions = Conditions.now()
    with Table.made(folder / "large", asked.rows, asked.batch_rows) as large:
        acts = {
            SCAN: lambda: scan(spark, large),
            OURS: lambda: check(spark, large),
            STOCK: lambda: expect(spark, large),
        }
        whole = measure_in_turns(acts, asked.repeat)
        console.print({name: round(median_cpu(costs), 2) for name, costs in whole.items()})
        with Table.made(folder / "small", asked.small_rows, asked.batch_rows) as small:
            grown = measure_increments(spark, {f"{len(table):,} rows": table for table in (small, large)}, asked)
    console.print({name: round(median_cpu(costs), 2) for name, costs in grown.items()})
    return _record(conditions, asked, whole, grown)


class Table:
    """A table as the engine writes it, with the ledger that its check compares it with; it can grow."""

    def __init__(self, folders: StreamFolders, committer: Committer) -> None:
        self.folders = folders
        self._committer, self._random, self._until = committer, np.random.default_rng(7), 0

    @classmethod
    @contextmanager
    def made(cls, root: Path, rows: int, batch_rows: int) -> Iterator[Self]:
        """A table of so many rows, in batches of one file each."""
        folders = StreamFolders(STREAM.name, root)
        claimed = WriterStartup(STREAM, folders, "cluster").claim(cancelled=lambda: False)
        with ThreadPoolExecutor(1) as side_table_executor:
            table = cls(folders, Committer(folders, claimed, side_table_executor, side_table_executor))
            for _ in range(0, rows, batch_rows):
                table.append(batch_rows)
            yield table

    def __len__(self) -> int:
        """Number of rows."""
        return self._until * PARTITIONS

    @property
    def path(self) -> Path:
        """Folder of the Delta table."""
        return self.folders.table

    def append_again(self, rows: int) -> None:
        """Commit the newest rows a second time, in a batch that read no message: no writer does."""
        self._commit(rows, first=self._until - rows // PARTITIONS, reached=self._until)

    def append(self, rows: int) -> None:
        """Commit a batch with rows of all partitions; each message has one."""
        first = self._until
        self._until += rows // PARTITIONS
        self._commit(rows, first=first, reached=first)

    def _commit(self, rows: int, *, first: int, reached: int) -> None:
        file = write_small_file(self.path, 0, rows, self._random, first=first)

        def make_ledger(stamp: LedgerStamp, _full: bool) -> list[LedgerRow]:  # noqa: FBT001  # the committer's own
            return [_make_range(stamp, partition, reached, self._until) for partition in range(PARTITIONS)]

        number = self._committer.head.batch + 1
        self._committer.commit(BatchCommit(number=number, commit_hour=HOUR, files=(file,)), make_ledger)
        self._committer.wait_for_side_tables()


def _make_range(stamp: LedgerStamp, partition: int, first: int, until: int) -> LedgerRow:
    topic, topic_id, now = f"growth.{partition}", f"id-of-{partition}", datetime.fromtimestamp(time.time(), UTC)
    position = Position(topic=topic, topic_id=topic_id, partition=0, next_offset=first)
    messages = until - first
    return msgspec.structs.replace(
        make_unchanged_row(stamp, position, None),
        until=until,
        messages=messages,
        rows=messages,
        with_rows=messages,
        last_event_time=now,
        newest_timestamp=now,
        watermark=now,
    )


def scan(spark: SparkSession, table: Table) -> None:
    """Read every column of every row, by Spark."""
    _load(spark, table).write.format("noop").mode("overwrite").save()


def check(spark: SparkSession, table: Table, *, full: bool = True) -> None:
    """The product's check, by its built-in rules and five of a user."""
    _ensure_passed(check_stream(spark, table.folders, rules=RULES_OF_USER, full=full))


def _ensure_passed(checked: Checked) -> None:
    if not checked.passed:
        failed = [result for result in checked.results if result.outcome.value != "passed"]
        raise FailedCheckError(f"the check of a sound table says {failed}; next: run lockstep check on such a table")


def expect(spark: SparkSession, table: Table) -> None:
    """The stock suite, by its Spark engine."""
    import great_expectations as gx
    from great_expectations.core import ExpectationSuite
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_spark("stock").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": _load(spark, table)})
    found: Any = batch.validate(ExpectationSuite(name="stock", expectations=_make_stock()))
    spark.catalog.clearCache()
    if not found.success:
        raise FailedCheckError(f"the stock suite fails a sound table: {found.describe()}")


def _make_stock() -> list[GreatExpectation]:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return [ExpectationConfiguration(type=each, kwargs=arguments).to_domain_obj() for each, arguments in STOCK_SUITE]


def _load(spark: SparkSession, table: Table) -> DataFrame:
    return spark.read.format("delta").load(str(table.path))


def measure_increments(spark: SparkSession, tables: dict[str, Table], asked: Checks) -> dict[str, list[Cost]]:
    """Costs of checks of what was added since the one before, table by table; the first ones warm up."""
    costs: dict[str, list[Cost]] = {name: [] for name in tables}
    for _ in range(asked.repeat + 2):
        for name, table in tables.items():
            table.append(asked.increment_rows)
            costs[name].append(measure(partial(check, spark, table, full=False)))
    return {name: each[2:] for name, each in costs.items()}


def measure_in_turns(acts: dict[str, Callable[[], None]], repeat: int) -> dict[str, list[Cost]]:
    """Costs of acts, each in its turn, after one round that does not count."""
    rounds = [{name: measure(act) for name, act in acts.items()} for _ in range(repeat + 1)]
    return {name: [each[name] for each in rounds[1:]] for name in acts}


def measure(act: Callable[[], None]) -> Cost:
    """Cost of an act, in this process and all below it."""
    cpu, began = _read_cpu(), time.monotonic()
    act()
    return Cost(_read_cpu() - cpu, time.monotonic() - began)


def _read_cpu() -> float:
    me = psutil.Process()
    times = [each.cpu_times() for each in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def median_cpu(costs: Sequence[Cost]) -> float:
    """Median of the CPU seconds."""
    return statistics.median(cost.cpu_seconds for cost in costs)


def _record(
    conditions: Conditions, asked: Checks, whole: dict[str, list[Cost]], grown: dict[str, list[Cost]]
) -> Record:
    cpu = {name: median_cpu(costs) for name, costs in whole.items()}
    (small, of_small), (large, of_large) = grown.items()
    rules, added = len(RULES) + len(RULES_OF_USER), f"{asked.increment_rows:,} rows"
    wall = statistics.median(cost.wall_seconds for cost in of_large)
    figures = [
        Figure(f"{rules} rules of lockstep to a scan of all columns", cpu[OURS] / cpu[SCAN], "", SCANS_MAX),
        Figure(f"the stock suite ({len(STOCK_SUITE)} expectations) to a scan", cpu[STOCK] / cpu[SCAN], ""),
        Figure("lockstep to the stock suite", cpu[OURS] / cpu[STOCK], ""),
        *(Figure(f"{name}, {asked.rows:,} rows", seconds, "CPU s") for name, seconds in cpu.items()),
        Figure(f"a check of {added} more, warm", wall, "s", INCREMENT_SECONDS_MAX),
        Figure(f"the same, {large} to {small}", median_cpu(of_large) / median_cpu(of_small), "", GROWTH_MAX),
        Figure(f"the same, to the stock suite over {asked.rows:,} rows", median_cpu(of_large) / cpu[STOCK], ""),
    ]
    bars = cpu | {f"lockstep, {added} more": median_cpu(of_large)}
    panel = Panel(
        kind="bars",
        title=f"a warm check of {asked.rows:,} rows",
        x_label="what reads them",
        y_label="CPU s",
        series=[Series("CPU", list(bars.values()), labels=list(bars))],
    )
    details = {name: msgspec.to_builtins(costs) for name, costs in (whole | grown).items()}
    return conditions.record("quality", msgspec.to_builtins(asked), figures, [panel], details)
