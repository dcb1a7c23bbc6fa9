"""Checks the additions to a stream since the last check, or all of it, and stores the result with its tables."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from lockstep.declare.rules import Expectation, Severity
from lockstep.declare.stream import format_source
from lockstep.engine.driver.metrics import compute_completeness_percent
from lockstep.features.quality.aggregate import SESSION_ENDS_MAX, Summary, open_rows, summarize, summarize_files
from lockstep.features.quality.increment import (
    CheckState,
    Increment,
    TableVersions,
    find_matching_versions,
    keep_state,
    load_state,
    make_state_path,
    plan_increment,
)
from lockstep.features.quality.partitions import SessionEnd
from lockstep.features.quality.rules import (
    PROOF_NOT_NULL,
    FileSummary,
    PartitionSummary,
    RuleOutcome,
    RuleResult,
    SummaryRule,
    judge_partitions,
    judge_rows,
    merge_forgotten,
)
from lockstep.features.quality.suite import Judged, judge_expectations, judge_summary, list_not_judged
from lockstep.model.decoding import decode_json
from lockstep.model.position import TopicIdPartition
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.ledger import LedgerRow, read_positions

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lockstep.declare.rules import Rule
    from lockstep.declare.stream import AnyStream
    from lockstep.table.layout import StreamFolders


RESULT_FILE: Final = "last_check.json"

RULES: Final = (*(rule.id for rule in judge_partitions()), PROOF_NOT_NULL.id)
"""Ids of the built-in rules, in the order of the results; the user's rules follow."""


class RowTraits(msgspec.Struct, frozen=True):
    """The properties of a stream's rows by its class and transform.

    Attributes:
        removed: The column that is null in the row of a removed key: rules about values pass over such a row.
        unordered_because: Why the class does not promise that the numbers of a session rise; empty if it does.
    """

    removed: str | None = None
    unordered_because: str = ""


NO_TRAITS: Final = RowTraits()


class Coverage(msgspec.Struct, frozen=True):
    """The rows that a check read.

    Attributes:
        full: The whole table, not an increment.
        reason: Why; empty for an increment.
        since: The table version of the check before, of an increment.
        files: Data files.
        rows: Their rows.
        size: Their bytes.
    """

    full: bool
    reason: str
    since: int | None
    files: int
    rows: int
    size: int

    def describe(self) -> str:
        """In a few words."""
        files = "1 file" if self.files == 1 else f"{self.files:,} files"
        if self.full:
            return f"the whole table: {self.rows:,} rows in {files} ({self.reason})"
        if not self.files:
            return f"nothing new since table version {self.since}"
        return f"{self.rows:,} new rows in {files} since table version {self.since}"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check.

    Attributes:
        stream: Name of the stream.
        versions: The checked versions.
        coverage: The rows that were read.
        partitions: The measurements of the whole table, in order of topic and partition: those of the last full check
            and of all increments since. Forgotten partitions that break no rule are one sum.
        results: One a rule: the built-in ones in the order of `RULES`, then the user's. Built-in rules are judged by
            the whole table, the user's by the rows that were read.
        rows_held: Rows of the table, where retention has dropped some: the measurements have those of all times.
    """

    stream: str
    versions: TableVersions
    coverage: Coverage
    partitions: tuple[PartitionSummary, ...]
    results: tuple[RuleResult, ...]
    rows_held: int | None = None

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        if self.rows_held is not None:
            return self.rows_held
        return sum(partition.rows for partition in self.partitions)

    @property
    def completeness_percent(self) -> float | None:
        """The percentage of the offsets ever read that is accounted for; None when none was read."""
        offsets = 0
        lost = 0
        for partition in self.partitions:
            offsets += partition.offsets_read + partition.gap_offsets
            lost += partition.gap_offsets + partition.unexplained_offsets + partition.unexplained_messages
        if not offsets:
            return None
        # An offset without explanation may be counted twice, once as its message.
        return compute_completeness_percent(max(0, offsets - lost), offsets)

    @property
    def passed(self) -> bool:
        """Whether something was checked, and nothing that could be checked was broken."""
        outcomes = {result.outcome for result in self.results}
        return RuleOutcome.PASSED in outcomes and not outcomes & {RuleOutcome.FAILED, RuleOutcome.CRASHED}

    @property
    def holds(self) -> bool:
        """Whether no critical rule failed and every rule could be judged."""
        failed = [result for result in self.results if result.outcome is RuleOutcome.FAILED]
        critical = any(result.severity is Severity.CRITICAL for result in failed)
        return not critical and not any(result.crashed for result in self.results)


def check_table(
    stream: AnyStream, spark: SparkSession, folders: StreamFolders, *, full: bool = False, keep: bool = True
) -> Checked:
    """Check the table of a declared stream by its rules; see `check_stream`."""
    return check_stream(
        spark,
        folders,
        rules=stream.rules,
        traits=find_traits(stream),
        full=full,
        keep=keep,
    )


def find_traits(stream: AnyStream) -> RowTraits:
    """The properties of a stream's rows by its class and transform."""
    return RowTraits(
        removed=stream.transform.removal_column(),
        unordered_because=stream.integrity.unordered_because,
    )


def check_stream(
    spark: SparkSession,
    folders: StreamFolders,
    *,
    rules: Sequence[Rule] = (),
    traits: RowTraits = NO_TRAITS,
    full: bool = False,
    keep: bool = True,
) -> Checked:
    """Check the commits of a stream since the last check, also while a writer runs, and store the result.

    1. Find matching versions of table and ledger, and the additions since the last check.
    2. Count the nulls of the provenance columns, from the log.
    3. Measure the partitions; not where provenance is null, because Spark would misread it.
    4. Judge each rule.
    5. Store the result under `<table root>/<stream>/quality`, and the start of the next check: unless a rule
       could not be judged, so that the next check reads the same rows again.

    Args:
        spark: A session with Delta's extensions, as `prepare_session` configures it.
        folders: The stream.
        rules: The user's rules.
        traits: Promises of class and transform about the rows.
        full: Check the whole table.
        keep: Store the result; without it, the next check reads the same rows again.

    Raises:
        TableError: The tables do not belong together, or have a foreign writer.
    """
    versions = find_matching_versions(folders)  # 1
    declared = (str(traits), *map(format_source, rules))
    planned = "asked for" if full else plan_increment(folders, load_state(folders), versions, declared)
    increment = None if isinstance(planned, str) else planned
    if increment is not None and not increment.files and increment.state.versions.batch == versions.batch:
        return _repeat(folders, increment.state, versions, keep=keep)
    files = _summarize_files(folders, versions, increment)  # 2
    broken = sum(file.nulls for file in files)
    reason = f"not judged: proof columns hold {broken} nulls, see rule {PROOF_NOT_NULL.id}" if broken else None
    measured = Summary(()) if broken else summarize(spark, folders, versions, rules, increment, traits.removed)  # 3
    totals = _add(increment.state.totals if increment else (), measured.partitions)
    built_in = judge_partitions(traits.unordered_because)  # 4
    judged = [_judge_built_in(built_in, totals, reason), judge_summary((PROOF_NOT_NULL,), files)]
    judged += _judge_rules(spark, folders, versions, rules, measured, increment, reason)
    results = _join_results(judged)
    living = read_positions(folders, OutputLog(folders.table).base().head).keys()
    checked = Checked(
        stream=folders.stream,
        versions=versions,
        coverage=_find_coverage(files, increment, planned),
        partitions=merge_forgotten(totals, living, built_in),
        results=_find_standing(results, increment.state.results if increment else ()),
        rows_held=_count_held(folders, versions) if increment else None,
    )
    if keep:  # 5
        keep_result(folders, checked, judged)
        if not any(result.crashed for result in results) and not judged[1].results[0].observed:
            keep_state(folders, _make_state(checked, declared, increment, measured, living))
        _forget_if_erased(folders, versions)
    return checked


def _summarize_files(
    folders: StreamFolders, versions: TableVersions, increment: Increment | None
) -> tuple[FileSummary, ...]:
    if increment is None:
        return summarize_files(folders.table, versions.table)
    return tuple(file.summarize() for file in increment.files)


def _judge_built_in(
    rules: Sequence[SummaryRule[PartitionSummary]], totals: Sequence[PartitionSummary], reason: str | None
) -> Judged:
    if reason:
        return list_not_judged(rules, reason)
    return judge_summary(rules, totals)


def _join_results(judged: Iterable[Judged]) -> tuple[RuleResult, ...]:
    results: list[RuleResult] = []
    for part in judged:
        results += part.results
    return tuple(results)


def _judge_rules(  # the parts of a check
    spark: SparkSession,
    folders: StreamFolders,
    versions: TableVersions,
    rules: Sequence[Rule],
    measured: Summary,
    increment: Increment | None,
    reason: str | None,
) -> list[Judged]:
    """The user's rules, judged by the rows that were read, in their order; all counted ones by one validation."""
    count = sum(partition.rows for partition in measured.partitions)
    expectations = dict[str, Judged]()
    reasons = {rule.name: reason or measured.uncompiled.get(rule.name) for rule in rules}
    judgeable = [rule for rule in rules if reasons[rule.name] is None]
    # Without a row an expectation is counted like the other rules, which then have nothing to check.
    expected = [rule for rule in judgeable if isinstance(rule, Expectation) and count]
    if expected:
        with open_rows(spark, folders, versions, increment) as (_, rows):
            expectations = judge_expectations(expected, rows, count)
    summary_rules = [judge_rows(rule) for rule in judgeable if rule.name not in expectations]
    counted = judge_summary(summary_rules, measured.partitions)
    results = {result.rule: result for result in _join_results(expectations.values())}
    for result in counted.results:
        sample = measured.samples.get(result.rule, ())
        results[result.rule] = msgspec.structs.replace(result, rows=count, sample=sample)
    for rule in rules:
        if (why := reasons[rule.name]) is not None:
            results[rule.name] = list_not_judged((judge_rows(rule),), why).results[0]
    ordered = Judged(tuple(results[rule.name] for rule in rules), counted.raw)
    return [ordered, *(Judged((), part.raw) for part in expectations.values())]


def _add(before: Iterable[PartitionSummary], later: Iterable[PartitionSummary]) -> tuple[PartitionSummary, ...]:
    """The measurements of the whole table after an increment."""
    totals = {partition.place: partition for partition in before}
    for partition in later:
        if partition.place in totals:
            totals[partition.place] = totals[partition.place].add(partition)
        else:
            totals[partition.place] = partition
    return tuple(sorted(totals.values(), key=lambda partition: (partition.topic, *partition.place)))


def _make_state(
    checked: Checked,
    declared: tuple[str, ...],
    increment: Increment | None,
    measured: Summary,
    living: Container[TopicIdPartition],
) -> CheckState:
    forgotten = frozenset(partition.place for partition in checked.partitions if partition.place not in living)
    ends = _merge_ends(increment, measured, living)
    return CheckState(checked.versions, declared, checked.partitions, ends, checked.results, forgotten)


def _merge_ends(
    increment: Increment | None, measured: Summary, living: Container[TopicIdPartition]
) -> tuple[SessionEnd, ...]:
    """The last numbers of the sessions after an increment: the numbers of messages before it move back.

    Of a forgotten partition no number moves back any more: its sessions would always be the newest.
    """
    ends = {(end.topic_id, end.partition, end.session): end for end in measured.sessions}
    messages = {partition.place: partition.new_messages for partition in measured.partitions}
    merged = list(ends.values())
    earlier = increment.state.sessions if increment else ()
    for end in earlier:
        if (end.topic_id, end.partition, end.session) not in ends:
            back = messages.get(TopicIdPartition(end.topic_id, end.partition), 0)
            merged.append(msgspec.structs.replace(end, number=end.number - back))
    of_living = [end for end in merged if TopicIdPartition(end.topic_id, end.partition) in living]
    of_living.sort(key=lambda end: end.number, reverse=True)
    return tuple(of_living[:SESSION_ENDS_MAX])


def _find_standing(results: Iterable[RuleResult], before: Iterable[RuleResult]) -> tuple[RuleResult, ...]:
    """Results, some without evidence in an increment: there a violation persists, and a pass is not repeated."""
    result_before = {result.rule: result for result in before}
    return tuple(_find_standing_one(result, result_before.get(result.rule)) for result in results)


def _find_standing_one(result: RuleResult, before: RuleResult | None) -> RuleResult:
    if before is None or result.outcome is not RuleOutcome.NOTHING or before.outcome is RuleOutcome.NOTHING:
        return result
    if before.outcome is RuleOutcome.FAILED:
        return before
    return msgspec.structs.replace(result, outcome=RuleOutcome.NOTHING_NEW, reason="no row since the last check")


def _repeat(folders: StreamFolders, state: CheckState, versions: TableVersions, *, keep: bool) -> Checked:
    """The result without additions, which is not stored; the next check continues from this version."""
    if keep:  # the log keeps its entries for a month only
        keep_state(folders, msgspec.structs.replace(state, versions=versions))
        _forget_if_erased(folders, versions)
    idle = [msgspec.structs.replace(result, outcome=RuleOutcome.NOTHING, observed=0) for result in state.results]
    return Checked(
        stream=folders.stream,
        versions=versions,
        coverage=Coverage(full=False, reason="", since=state.versions.table, files=0, rows=0, size=0),
        partitions=state.totals,
        results=_find_standing(idle, state.results),
        rows_held=_count_held(folders, versions),
    )


def _count_held(folders: StreamFolders, versions: TableVersions) -> int | None:
    """Rows of the checked version, by its log; None if retention has dropped none."""
    if not versions.retired:
        return None
    actions = pa.table(delta_log.open_delta_table(folders.table, version=versions.table).get_add_actions())
    return sum(rows or 0 for rows in actions["num_records"].to_pylist())


def _find_coverage(files: Sequence[FileSummary], increment: Increment | None, planned: Increment | str) -> Coverage:
    return Coverage(
        full=increment is None,
        reason=planned if isinstance(planned, str) else "",
        since=increment.state.versions.table if increment else None,
        files=len(files),
        rows=sum(file.rows for file in files),
        size=sum(file.size for file in files),
    )


def make_result_path(folders: StreamFolders) -> Path:
    """The file with the last result and Great Expectations' output, as JSON."""
    return folders.root / folders.stream / "quality" / RESULT_FILE


class CheckHistoryEntry(msgspec.Struct, frozen=True):
    """One check in the history of a stream.

    Attributes:
        at: Time, in seconds since 1970 (UTC).
        version: The checked table version.
        full: The whole table was read.
        rows: Rows that were read.
        outcomes: Outcome of each rule.
        lag_messages: Messages behind the last stable offsets, as of the last batch.
        freshness_seconds: Age of the newest message at its commit, at least 0; None without a message.
    """

    at: float
    version: int
    full: bool
    rows: int
    outcomes: dict[str, RuleOutcome]
    lag_messages: int
    freshness_seconds: float | None


class LastCheck(msgspec.Struct, frozen=True):
    """The stored result of a check, for people.

    Attributes:
        checked: Its result.
        history: The checks so far by their time, but this check last, also if the clock has moved back.
        great_expectations: The results of Great Expectations.
    """

    checked: Checked
    history: tuple[CheckHistoryEntry, ...] = ()
    great_expectations: tuple[msgspec.Raw, ...] = ()


HISTORY_MAX: Final = 24 * 30
"""Checks in the history: a month of hourly ones, some 200 kB."""
POINTS_FOLDER: Final = "points"
POINT_SECONDS: Final = 86_400.0
"""Age of a point's file that every check has seen which could still replace the result."""


def read_last_check(folders: StreamFolders) -> LastCheck | None:
    """The last check that left a result; None without one that this release can read."""
    path = make_result_path(folders)
    try:
        return decode_json(find_storage(path).read(path), LastCheck)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def keep_result(folders: StreamFolders, checked: Checked, judged: Iterable[Judged]) -> None:
    """Replace the last result atomically; of two checks at once the points of both stay in the history.

    1. Write the point of this check to a separate file.
    2. Write the result with the points of the result before and of all these files, until no file has been added since:
       the last writer has read all.
    3. Delete the files of points that have been in results for long.
    """
    path = make_result_path(folders)
    point = _make_point(folders, checked)
    storage = find_storage(path)
    points = path.parent / POINTS_FOLDER
    raw = tuple(part.raw for part in judged if part.raw is not None)
    storage.replace(points / f"{uuid.uuid4().hex}.json", msgspec.json.encode(point))  # 1
    seen: list[Path] = []
    listed = storage.find_files(points, "*.json")
    while seen != listed:  # 2
        seen = listed
        last = read_last_check(folders)
        history = _join_history(last.history if last else (), seen)
        others = tuple(entry for entry in history if entry != point)
        result = LastCheck(checked, (*others[1 - HISTORY_MAX :], point), raw)
        storage.replace(path, msgspec.json.format(msgspec.json.encode(result)))
        # Another check may have written its point after it was listed here, and its result before this one.
        listed = storage.find_files(points, "*.json")
    for file in seen:  # 3
        status = storage.get_status(file)
        if status is not None and time.time() - status.modified_at > POINT_SECONDS:
            storage.delete(file)


def forget_sessions(folders: StreamFolders) -> None:
    """Remove all names of sessions from the stored result, and make the next check read the whole table."""
    # Totals cannot be reduced by the rows of a session, so the state is deleted and not rewritten.
    find_storage(folders.root).delete(make_state_path(folders))
    path = make_result_path(folders)
    last = read_last_check(folders)
    if last is None:
        find_storage(path).delete(path)
        return
    # Samples name sessions, and the reason of a crash may quote a value.
    results = tuple(msgspec.structs.replace(result, worst=(), sample=(), reason="") for result in last.checked.results)
    checked = msgspec.structs.replace(last.checked, results=results)
    nameless = msgspec.structs.replace(last, checked=checked, great_expectations=())
    find_storage(path).replace(path, msgspec.json.format(msgspec.json.encode(nameless)))


def _forget_if_erased(folders: StreamFolders, versions: TableVersions) -> None:
    """Forget the sessions of a result that is stored after an erasure which the checked version does not have."""
    erasure = OutputLog(folders.table).base().head.erasure
    if erasure is not None and erasure.batch > versions.batch:
        forget_sessions(folders)


def _join_history(before: Iterable[CheckHistoryEntry], files: Iterable[Path]) -> tuple[CheckHistoryEntry, ...]:
    """All points, oldest first, each once."""
    points = {(point.at, point.version): point for point in before}
    for file in files:
        with suppress(FileNotFoundError, msgspec.MsgspecError):  # deleted by another check, or of another release
            point = decode_json(find_storage(file).read(file), CheckHistoryEntry)
            points[point.at, point.version] = point
    return tuple(points[key] for key in sorted(points))


def _make_point(folders: StreamFolders, checked: Checked) -> CheckHistoryEntry:
    positions = read_positions(folders, OutputLog(folders.table).base().head).values()
    return CheckHistoryEntry(
        at=time.time(),
        version=checked.versions.table,
        full=checked.coverage.full,
        rows=checked.coverage.rows,
        outcomes={result.rule: result.outcome for result in checked.results},
        lag_messages=sum(max(0, row.stable_end - row.until) for row in positions),
        freshness_seconds=_compute_freshness(positions),
    )


def _compute_freshness(positions: Iterable[LedgerRow]) -> float | None:
    ages = [
        (row.newest_timestamp, row.committed_at - row.newest_timestamp) for row in positions if row.newest_timestamp
    ]
    if not ages:
        return None
    _, age = max(ages)
    # A producer's clock may be ahead.
    return max(0.0, age.total_seconds())
