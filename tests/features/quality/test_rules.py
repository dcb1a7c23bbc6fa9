"""Each user rule finds the injected faults that it covers; the cost of an increment depends on the added rows."""

from __future__ import annotations

import logging
import os
import shutil
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import AnalysisException

from lockstep import DecimalType
from lockstep.declare.rules import Rule, check_rules
from lockstep.features.quality import aggregate
from lockstep.features.quality.aggregate import compile_rules, summarize
from lockstep.features.quality.check import RULES, Checked, check_stream
from lockstep.features.quality.increment import (
    CheckState,
    Increment,
    find_matching_versions,
    load_state,
    make_state_path,
    plan_increment,
)
from lockstep.features.quality.rules import RuleOutcome
from lockstep.features.quality.suite import judge_expectations
from lockstep.model.finding import Hole
from lockstep.model.table_schema import make_row_schema
from lockstep.rules import Expectation, InRange, InSet, Matches, NotNull, Predicate, References, Severity, Unique
from lockstep.storage import find_storage
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import OutputLog, commit_claim
from lockstep.table.delta_log import make_entry_path
from lockstep.table.head import Lineage
from lockstep.table.ledger import FORGOTTEN
from tests.features.quality.stream_tables import (
    CLEAN,
    Part,
    Place,
    clean_batches,
    quiet,
    write,
    write_more,
)
from tests.features.quality.stream_tables import (
    RANGE as OFFSETS,
)
from tests.unit.declare.ruled_rows import ALL, Ruled
from tests.unit.declare.ruled_rows import ROWS as CORPUS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

PASSED = RuleOutcome.PASSED
FAILED = RuleOutcome.FAILED
CRASHED = RuleOutcome.CRASHED
NEW = RuleOutcome.NOTHING_NEW

RANGE = InRange("value", at_least=100, at_most=100_000, severity=Severity.CRITICAL, blocking=True)
SQL = Predicate("value = _offset and cast(_session as int) is null", id="value_is_offset")
PER_MESSAGE = Unique("_row", id="row_unique")
EXPECTED = Expectation("expect_column_max_to_be_between", {"column": "value", "max_value": 200})
MEDIAN = Expectation(
    "expect_column_quantile_values_to_be_between",
    {"column": "value", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[1, 2]]}},
    id="median",
)
"""Great Expectations judges it with numpy numbers."""
GOOD: tuple[Rule, ...] = (RANGE, SQL, PER_MESSAGE, EXPECTED)


def outcomes(checked: Checked) -> dict[str, RuleOutcome]:
    return {result.rule: result.outcome for result in checked.results}


def found(checked: Checked, rule: str) -> tuple[RuleOutcome, int | None]:
    return next((result.outcome, result.observed) for result in checked.results if result.rule == rule)


def jobs(spark: SparkSession, group: str) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_rules_run_with_the_built_in_ones_in_the_same_jobs(spark: SparkSession, tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(2))
    rules = (RANGE, SQL, PER_MESSAGE, *(InRange("value", at_least=at, id=f"from_{at}") for at in range(20)))
    for table in (folders.table, folders.ledger):
        spark.read.format("delta").load(str(table)).inputFiles()  # Delta caches the states of the logs
    spark.sparkContext.setJobGroup("rules", "rules")
    checked = check_stream(spark, folders, rules=rules)
    assert outcomes(checked) == dict.fromkeys((*RULES, *(rule.name for rule in rules)), PASSED)
    assert jobs(spark, "rules") <= 2


def test_a_violated_rule_shows_where_with_one_more_query(spark: SparkSession, tmp_path: Path) -> None:
    batches = clean_batches(2)
    for number in (131, 133):
        batches[1][CLEAN[1]].row(number)["value"] = -number
    folders = write(tmp_path, batches)
    rules = (RANGE, SQL, InRange("value", at_most=10**9, id="other"))
    checked = check_stream(spark, folders, rules=rules)
    assert found(checked, "value_in_range") == found(checked, "value_is_offset") == (FAILED, 2)
    assert found(checked, "other") == (PASSED, 0)
    result = next(result for result in checked.results if result.rule == "value_in_range")
    assert (result.severity, result.blocking, result.rows) == (Severity.CRITICAL, True, checked.rows)
    assert [place["violations"] for place in result.worst] == [2]
    shown = {"topic": "sensors.a", "partition": 1, "row": 0, "session": "s1"}
    assert result.sample == tuple(shown | {"offset": at, "emit_offset": at} for at in (131, 133))
    assert not checked.passed


@pytest.mark.slow
def test_a_rule_that_spark_cannot_run_crashes_alone_and_the_check_is_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = write(tmp_path, clean_batches(2))
    wrong = (
        Predicate("nowhere > 0", id="no_column"),
        Predicate("(value", id="no_sql"),
        Predicate("value", id="no_boolean"),
        Predicate("sum(value) > 0", id="no_row"),
        Predicate("cast(value as string) rlike '{'", id="no_pattern"),
        Expectation("expect_nothing_like_this", id="no_expectation"),
        Expectation("expect_column_max_to_be_between", {"column": "value", "max_value": 1}, id="too_high"),
        MEDIAN,
        Predicate("1 / (value - value) is not null", id="division_by_zero"),
    )
    checked = check_stream(spark, folders, rules=(*wrong, RANGE))
    seen = outcomes(checked)
    assert {rule for rule, outcome in seen.items() if outcome is CRASHED} == {
        "no_column",
        "no_sql",
        "no_boolean",
        "no_row",
        "no_pattern",
        "no_expectation",
    }
    assert {rule for rule, outcome in seen.items() if outcome is FAILED} == {
        "too_high",
        "median",
        "division_by_zero",
    }
    assert found(checked, "division_by_zero")[1] == checked.rows
    assert load_state(folders) is None
    assert not checked.passed


def test_an_error_of_a_query_is_raised_and_not_printed_too(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.StreamHandler, "emit", lambda _, record: printed.append(record))
    with pytest.raises(AnalysisException):
        spark.range(1).selectExpr("nowhere > 0")
    assert printed == []


def test_a_value_that_is_no_key_of_another_table_is_found(spark: SparkSession, tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(2))
    rows = spark.read.format("delta").load(str(folders.table))
    values = sorted({row["value"] for row in rows.select("value").collect()})
    known = pa.table({"value": [*values[1:], *values[1:]], "name": ["n"] * 2 * (len(values) - 1)})
    write_deltalake(tmp_path / "values" / "table", known)
    rules = (
        References("value", "values/table"),
        References("value", str(tmp_path / "values" / "table"), key="value", id="all"),
        References("value", "nowhere", id="no_table"),
        References("value", "values/table", key="name", id="other_type"),
        References("value", "values/table", key="nothing", id="no_column"),
    )
    spark.sparkContext.setJobGroup("references", "references")
    checked = check_stream(spark, folders, rules=(*rules, RANGE))
    without = rows.where(rows["value"] == values[0]).count()
    assert found(checked, "value_references") == found(checked, "all") == (FAILED, without)
    assert {rule for rule, outcome in outcomes(checked).items() if outcome is CRASHED} == {
        "no_table",
        "other_type",
        "no_column",
    }
    assert found(checked, "value_in_range") == (PASSED, 0)
    said = next(result for result in checked.results if result.rule == "other_type")
    assert "value is of type bigint, name of values/table of string" in str(said)


def test_an_increment_reads_what_was_added_and_judges_the_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The increment is judged with the options of a large table."""
    batches = clean_batches(5)
    folders = write(tmp_path, batches[:3])
    first = check_stream(spark, folders, rules=GOOD)
    assert (first.coverage.full, first.coverage.files, first.coverage.rows) == (True, 9, first.rows)
    assert outcomes(first) == dict.fromkeys((*RULES, *(rule.name for rule in GOOD)), PASSED)

    nothing = check_stream(spark, folders, rules=GOOD)
    assert outcomes(nothing) == dict.fromkeys((*RULES, *(rule.name for rule in GOOD)), NEW)
    assert (nothing.coverage.files, nothing.passed) == (0, False)

    write_more(folders, batches, 3)
    spark.sparkContext.setJobGroup("increment", "increment")
    with monkeypatch.context() as patch:
        patch.setattr(aggregate, "SMALL_BYTES", -1)
        second = check_stream(spark, folders, rules=GOOD[:3] + GOOD[3:])
    whole = check_stream(spark, folders, rules=GOOD, full=True)
    assert (second.coverage.full, second.coverage.files, second.coverage.rows) == (False, 6, whole.rows - first.rows)
    built_in = {name: outcome for name, outcome in outcomes(second).items() if name in RULES}
    assert built_in == dict.fromkeys(RULES, PASSED)
    assert [strip(partition) for partition in second.partitions] == [strip(partition) for partition in whole.partitions]
    assert found(second, EXPECTED.name)[0] is FAILED  # all its rows are beyond 200


@pytest.mark.slow
def test_a_forgotten_partition_costs_the_next_checks_nothing(spark: SparkSession, tmp_path: Path) -> None:
    batches = clean_batches(5)
    gone = CLEAN[2]
    until = batches[1][gone].ledger[0].until
    for number, batch in enumerate(batches[2:], 3):
        forgotten = msgspec.structs.replace(quiet(gone, number), start=until, until=until, lifecycle=FORGOTTEN)
        batch[gone] = Part([[]], [forgotten] if number == 3 else [])
    folders = write(tmp_path, batches[:2])
    check_stream(spark, folders)
    for first in (2, 3, 4):
        write_more(folders, batches[: first + 1], first)
        checked = check_stream(spark, folders)
        whole = check_stream(spark, folders, full=True, keep=False)
        assert list(map(strip, checked.partitions)) == list(map(strip, whole.partitions))
        assert (checked.coverage.full, checked.passed) == (False, True)
    assert {each.topic for each in checked.partitions} == {"(forgotten topics)", *(place.topic for place in CLEAN[:2])}
    assert checked.rows == DeltaTable(folders.table).to_pyarrow_dataset().count_rows()
    state = load_state(folders)
    versions = find_matching_versions(folders)
    assert state is not None
    assert {end.topic_id for end in state.sessions} == {"id-a"}
    planned = plan_increment(folders, state, versions, state.rules)
    assert isinstance(planned, Increment)
    measured = summarize(spark, folders, versions, (), planned)
    assert {each.topic_id for each in measured.partitions} == {"id-a"}


def test_an_idle_stream_is_not_read_again_when_its_old_log_entries_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = write(tmp_path, clean_batches(2))
    first = check_stream(spark, folders)
    output = OutputLog(folders.table)
    for epoch in (1, 2):
        output.commit(commit_claim(epoch, output.table_id, lambda _: None))
    assert check_stream(spark, folders).coverage.files == 0
    write_checkpoint(folders.table)
    for version in range(first.versions.table + 2):
        make_entry_path(folders.table, version).unlink()
    later = check_stream(spark, folders)
    assert (later.versions.table, later.coverage.full) == (first.versions.table + 2, False)


def strip(partition: object) -> dict[str, object]:
    """Return the measurements without those of the increment alone."""
    return {
        name: value
        for name, value in msgspec.structs.asdict(partition).items()  # type: ignore[arg-type]  # a Struct
        if name not in {"violations", "new_messages"}
    }


DENSE = Place("sensors.dense", "id-d", 0)
"""Each message has a row, and all are of one session: a restart of its numbers is always noticed."""


def dense(batch: int, first_number: int) -> Part:
    """Return a batch of DENSE."""
    start = 100 + (batch - 1) * OFFSETS
    rows = [
        {"value": start + at, "_topic": DENSE.topic, "_topic_id": DENSE.topic_id, "_partition": 0, "_row": 0}
        | {"_offset": start + at, "_emit_offset": start + at, "_session": "s", "_sequence": first_number + at}
        | {"_event_time": None, "_cause": "update"}
        for at in range(OFFSETS)
    ]
    counts = {"start": start, "until": start + OFFSETS, "messages": OFFSETS, "rows": OFFSETS}
    return Part([rows], [msgspec.structs.replace(quiet(DENSE, batch), **counts)])


@pytest.mark.parametrize("falls", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_faults_across_the_boundary_are_found(spark: SparkSession, tmp_path: Path, falls: int) -> None:
    """A sequence that falls, a gap, a file that is committed again: each between two increments."""
    batches = clean_batches(4)[:3]
    for number, batch in enumerate(batches, 1):
        batch[DENSE] = dense(number, 30 * number - (29 if falls and number == 3 else 0))
    folders = write(tmp_path, batches[:2])
    assert check_stream(spark, folders).passed
    later = batches[2]
    moved = later[CLEAN[1]]
    for row in moved.files[0]:
        row["_emit_offset"] += 3
        row["_offset"] += 3
    before = moved.ledger[0]
    holes = [Hole(hole.start + 3, hole.until + 3, hole.cause) for hole in before.holes]
    moved.change_ledger(start=before.start + 3, until=before.until + 3, holes=holes)
    later[CLEAN[2]].files.append(batches[1][CLEAN[2]].files[0])
    write_more(folders, batches, 2)

    checked = check_stream(spark, folders)
    assert not checked.coverage.full
    _, second, third, fourth = checked.partitions
    assert (second.gap_offsets, fourth.sequence_falls) == (3, falls)
    assert third.rows_outside == len(batches[1][CLEAN[2]].files[0])
    failed = {name for name, outcome in outcomes(checked).items() if outcome is FAILED}
    assert failed == {"completeness", *(["sequence"] if falls else [])}
    again = outcomes(check_stream(spark, folders))
    assert (again["completeness"], again["proof_not_null"]) == (FAILED, NEW)  # a broken rule stays failed


def test_a_check_that_cannot_continue_reads_everything_and_says_why(tmp_path: Path) -> None:
    batches = clean_batches(3)
    folders = write(tmp_path, batches[:2])
    before = find_matching_versions(folders)
    rules = ("NotNull()",)
    state = CheckState(before, rules, (), (), ())
    write_more(folders, batches, 2)
    now = find_matching_versions(folders)
    planned = plan_increment(folders, state, now, rules)
    assert isinstance(planned, Increment)
    assert [file.rows for file in planned.files] == [len(batches[2][place].files[0]) for place in CLEAN]

    find_storage(folders.table).replace(make_state_path(folders), b"torn")
    assert plan_increment(folders, load_state(folders), now, rules) == "there is no earlier result to continue from"
    assert plan_increment(folders, state, now, ()) == "the rules were changed since the last check"
    replaced = msgspec.structs.replace(now, table_id="another")
    rewound = msgspec.structs.replace(now, valid=(*now.valid, Lineage(2, now.batch)))
    for other in (replaced, rewound):
        assert "replaced or rewound" in str(plan_increment(folders, state, other, rules))
    assert "is older" in str(plan_increment(folders, CheckState(now, rules, (), (), ()), before, rules))
    entry = make_entry_path(folders.table, now.table)
    text = entry.read_bytes().rstrip() + b"\n"
    changed = f"version {now.table} may have changed rows"
    for kind, why in {b"erase": "erase", b"rewind": "rewind", b"promote": "promote", b"": "another tool"}.items():
        find_storage(entry).replace(entry, text.replace(b'"lockstep.kind":"batch"', b'"lockstep.kind":"%s"' % kind))
        assert plan_increment(folders, state, now, rules) == f"{changed}: {why}"
    removed = msgspec.json.encode({"remove": {"path": planned.files[0].path, "dataChange": True}})
    find_storage(entry).replace(entry, text + removed + b"\n")
    assert plan_increment(folders, state, now, rules) == planned  # dropped by retention or compacted: still there
    (folders.table / planned.files[0].path).unlink()
    assert "is deleted" in str(plan_increment(folders, state, now, rules))
    entry.unlink()
    assert plan_increment(folders, state, now, rules) == f"the log entry of version {now.table} is gone"


def test_a_table_that_was_set_back_and_written_again_is_read_whole(tmp_path: Path) -> None:
    """Restored from a copy without its check state: as many versions as before, from other commits."""
    batches = clean_batches(5)
    copy = tmp_path / "copy"
    folders = write(tmp_path, batches[:2])
    shutil.copytree(tmp_path / folders.stream, copy)
    write_more(folders, batches[:4], 2)
    state = CheckState(find_matching_versions(folders), (), (), (), ())
    assert plan_increment(folders, state, find_matching_versions(folders), ()) == Increment(state, ())
    shutil.rmtree(tmp_path / folders.stream)
    copy.rename(tmp_path / folders.stream)
    write_more(folders, batches, 2)
    planned = plan_increment(folders, state, find_matching_versions(folders), ())
    assert planned == "the table was set back since the last check, and written again"


def test_an_expectation_of_great_expectations_is_the_rule_of_its_name_and_arguments() -> None:
    from great_expectations import expectations

    gxe: Any = expectations  # its names are created at run time
    made = Expectation.from_gx(gxe.ExpectColumnMaxToBeBetween(column="value", max_value=200), id="low")
    assert made == Expectation(EXPECTED.type, EXPECTED.arguments, id="low")


@pytest.fixture(params=["Asia/Kolkata", "America/New_York"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the local time zone of this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_an_expectation_about_times_means_utc_wherever_the_check_runs(spark: SparkSession, zone: str) -> None:
    """Spark returns times to Python in local time, and treats times without a zone as local."""
    first = datetime(2026, 3, 8, 4, 30, tzinfo=UTC)
    last = datetime(2026, 3, 8, 8, tzinfo=UTC)
    frame = spark.createDataFrame(pa.table({"at": pa.array([first, last], pa.timestamp("us", tz="UTC"))}))
    naive = [each.replace(tzinfo=None) for each in (first, last)]
    written: dict[str, list[Any]] = {
        "text": [each.isoformat() for each in naive],
        "naive": naive,
        "aware": [first, last],
    }
    rules: list[Expectation] = []
    for name, (low, high) in written.items():
        values, most = ({"column": "at", "min_value": each, "max_value": high} for each in (low, high))
        rules.append(Expectation("expect_column_values_to_be_between", values, id=f"{name}_values"))
        rules.append(Expectation("expect_column_max_to_be_between", most, id=f"{name}_max"))
    results = {name: each.results[0] for name, each in judge_expectations(rules, frame, 2).items()}
    assert {name: (each.outcome, each.reason) for name, each in results.items()} == {
        rule.name: (PASSED, "" if rule.name.endswith("values") else "observed 2026-03-08T08:00:00") for rule in rules
    }
    assert os.environ["TZ"] == zone
    assert time.localtime(0)[3:5] == {"Asia/Kolkata": (5, 30), "America/New_York": (19, 0)}[zone]


def test_spark_python_and_great_expectations_agree_row_by_row(spark: SparkSession) -> None:
    """Except for nulls and NaN: stock expectations skip them, and they violate a rule."""
    rows = [msgspec.structs.asdict(row) | {"colour": row.colour.value} for row, _ in CORPUS]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, make_row_schema(Ruled)))
    compiled, failed = compile_rules(frame, ALL)
    assert failed == {}
    flagged = frame.select(*(flag.alias(rule.name) for rule, flag in compiled)).collect()
    by_spark = [{name for name, violated in row.asDict().items() if violated} for row in flagged]
    assert by_spark == [violated for _, violated in CORPUS]
    stock = find_stock_verdicts(rows)
    assert set(stock) <= {rule.name for rule in ALL}
    for rule, unexpected in stock.items():
        column = next(each.column for each in ALL if each.name == rule)
        known = [at for at, row in enumerate(rows) if row[column] is not None and row[column] == row[column]]
        assert unexpected & set(known) == {at for at in known if rule in by_spark[at]}, rule


def test_rules_about_values_pass_over_the_row_of_a_removed_key(spark: SparkSession) -> None:
    """As in the check before the commit; `Unique` checks all rows."""
    values: list[tuple[str, int | None]] = [("a", 1), ("a", None), ("b", -1)]
    place = {"_topic_id": "t", "_partition": 0, "_session": "s", "_offset": 0, "_emit_offset": 0}
    rows = [{**place, "_row": at, "name": name, "value": value} for at, (name, value) in enumerate(values)]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows))
    rules = [NotNull("value"), InRange("value", at_least=0), Predicate("value > 0", id="positive"), Unique("name")]
    expected = {
        None: [set(), {"value_not_null", "value_in_range", "positive", "name_unique"}, {"value_in_range", "positive"}],
        "value": [set(), {"name_unique"}, {"value_in_range", "positive"}],
    }
    for removed, violated in expected.items():
        compiled, failed = compile_rules(frame, rules, removed)
        assert failed == {}
        flagged = frame.orderBy("_row").select(*(flag.alias(rule.name) for rule, flag in compiled)).collect()
        assert [{name for name, is_violated in row.asDict().items() if is_violated} for row in flagged] == violated


class Odd(msgspec.Struct, frozen=True):
    """A row with values that Spark rounds or shifts, or that overflow Java's stack."""

    small: Annotated[Decimal, DecimalType(38, 38)] = Decimal(0)
    large: Annotated[Decimal, DecimalType(38, 0)] = Decimal(0)
    share: float = 0.0
    at: datetime = datetime(1500, 1, 1, tzinfo=UTC)
    day: date = date(1582, 10, 10)
    text: str = ""


ODD = (
    InRange("small", at_least=1, id="small_from_1"),
    InRange("small", at_most=0, id="small_to_0"),
    InRange("large", at_least=Decimal("-0.5"), id="large_from_half"),
    InRange("large", at_most=Decimal("0.5"), id="large_to_half"),
    InRange("large", at_most=Decimal("1E+60"), id="large_to_more"),
    InRange("large", at_least=Decimal("1E+60"), id="large_from_more"),
    InRange("share", at_least=2**53 + 1, id="share_from"),
    InRange("share", at_most=-(2**53) - 1, id="share_to"),
    InRange("at", at_least=datetime(1500, 1, 1, tzinfo=UTC), id="at_from"),
    InRange("at", at_most=datetime(1, 1, 1, tzinfo=UTC), id="at_to"),
    InRange("day", at_least=date(1582, 10, 10), id="day_from"),
    InRange("day", at_most=date(1, 1, 1), id="day_to"),
    InSet("day", [date(1582, 10, 10), date(1, 1, 1)], id="day_in"),
    Matches("text", "(a|b)*"),
    Matches("text", r"a\Z\n?", id="text_end"),
    Matches("text", "(?m)a\n^", id="text_lines"),
    Matches("text", r"(?:(?m:^$)|c)", id="text_empty"),
    Matches("text", r"\ud83d\ude00", id="text_surrogates"),
)


def test_spark_judges_values_as_python_does_where_its_own_types_would_not(spark: SparkSession) -> None:
    rows = [
        *(Odd(small=Decimal(value)) for value in ("1E-38", "0." + 38 * "9", "-1E-38")),
        *(Odd(large=Decimal(value)) for value in ("1", "-1", 38 * "9")),
        *(Odd(share=value) for value in (2.0**53, 2.0**53 + 2, -(2.0**53), -(2.0**53) - 2)),
        *(Odd(at=datetime(*day, tzinfo=UTC)) for day in ((1, 1, 1), (1499, 12, 31), (1582, 10, 15), (9999, 12, 31))),
        *(Odd(day=date(*day)) for day in ((1, 1, 1), (1582, 10, 9), (1582, 10, 15), (9999, 12, 31))),
        *(Odd(text=text) for text in ("ab" * 50_000, "a" * 100_000 + "c", "a\n", "\U0001f600")),
    ]
    table = pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], make_row_schema(Odd))
    frame = spark.createDataFrame(table)
    check_rules(ODD, Odd)
    compiled, failed = compile_rules(frame, ODD)
    assert failed == {}
    judged = frame.select(*(flag.alias(rule.name) for rule, flag in compiled)).collect()
    kept = [{rule.name: not rule.is_kept_by(row) for rule in ODD} for row in rows]
    assert [row.asDict() for row in judged] == kept


def find_stock_verdicts(rows: list[dict[str, object]]) -> dict[str, set[int]]:
    """Return the rows that the stock expectations of Great Expectations reject, by the rule with the same meaning."""
    import great_expectations as gx
    import pandas as pd
    from great_expectations import expectations

    gxe: Any = expectations  # its names are created at run time
    context = gx.get_context(mode="ephemeral")
    asset = context.data_sources.add_pandas("stock").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": pd.DataFrame(rows)})
    expected = {
        "number_from_zero": gxe.ExpectColumnValuesToBeBetween(column="number", min_value=0),
        "number_to_ten": gxe.ExpectColumnValuesToBeBetween(column="number", max_value=10),
        "name_in_set": gxe.ExpectColumnValuesToBeInSet(column="name", value_set=["a", "b"]),
        "colour_in_set": gxe.ExpectColumnValuesToBeInSet(column="colour", value_set=["red"]),
        "name_matches": gxe.ExpectColumnValuesToMatchRegex(column="name", regex=r"\A[a-z]\Z"),
    }
    results = {rule: batch.validate(each, result_format="COMPLETE") for rule, each in expected.items()}
    return {rule: set(result.result["unexpected_index_list"] or ()) for rule, result in results.items()}
