"""Judges measured places with Great Expectations: one expectation per rule, a value object as result.

Surprises of its version 1.24 that are handled here: results are in another order than the suite (rules
are found by their id in `meta`); a crashed expectation resembles a failed one with other fields; nulls
are excluded from column checks, so a column of nulls passes (counts are built as integers, which cannot
be null); importing it takes seconds and 300 MB (so it is imported on use).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.features.quality.rules import Cell, P, RuleOutcome, RuleResult, SummaryRule, judge_rows

if TYPE_CHECKING:
    from great_expectations.datasource.fluent.interfaces import Batch
    from pyspark.sql import DataFrame

    from lockstep.declare.rules import Expectation

WORST_MAX: Final = 20
"""Places shown of a broken rule: enough to see a pattern, few enough to read."""


class Judged(msgspec.Struct, frozen=True):
    """The outcome of some rules.

    Attributes:
        results: One per rule, in the order of the rules.
        raw: Great Expectations' own result as JSON; None when there was nothing to check.
    """

    results: tuple[RuleResult, ...]
    raw: msgspec.Raw | None = None


def judge_summary(rules: Sequence[SummaryRule[P]], places: Sequence[P]) -> Judged:
    """Judge the rules at all places.

    Args:
        rules: The rules; their ids differ.
        places: The measurements, one per place.
    """
    breaks = {rule.id: list(map(rule.breaks, places)) for rule in rules}
    # A break without evidence must not become "nothing to check yet".
    with_evidence = [rule for rule in rules if any(breaks[rule.id]) or any(map(rule.evidence, places))]
    if not with_evidence:
        return Judged(tuple(map(_nothing, rules)))
    by_rule, raw = validate({rule.id: rule.id for rule in with_evidence}, breaks)
    results: list[RuleResult] = []
    for rule in rules:
        if rule in with_evidence:
            results.append(read_result(rule, breaks[rule.id], places, by_rule.get(rule.id)))
        else:
            results.append(_nothing(rule))
    return Judged(tuple(results), raw)


def list_not_judged(rules: Sequence[SummaryRule[P]], reason: str) -> Judged:
    """All rules as crashed: their measurements are not available."""
    return Judged(tuple(_crashed(rule, reason) for rule in rules))


def validate(
    columns: Mapping[str, str], breaks: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Mapping[str, Any]], msgspec.Raw]:
    """Validate with Great Expectations the absence of breaks, in one column per rule.

    Args:
        columns: The column of each rule, by rule id.
        breaks: Columns by name, one count per place.

    Returns:
        Its result of each rule by rule id, and the whole result as JSON.
    """
    import great_expectations as gx
    import pandas as pd
    from great_expectations.core import ExpectationSuite
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.expectations.core.expect_column_values_to_be_between import ExpectColumnValuesToBeBetween

    # Nulls are excluded from checks of a column, so that a column of nulls passes: integers cannot be null.
    frame = pd.DataFrame(breaks).astype("int64")
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("summary").add_dataframe_asset("places")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    suite = ExpectationSuite(
        name="lockstep",
        expectations=[
            ExpectColumnValuesToBeBetween(column=column, min_value=0, max_value=0, meta={"rule": rule})
            for rule, column in columns.items()
        ],
    )
    validated: dict[str, Any] = batch.validate(suite, result_format="BASIC").to_json_dict()  # type: ignore[no-untyped-call]  # not typed there
    # Its results are in another order than the suite.
    by_rule = {result["expectation_config"]["meta"]["rule"]: result for result in validated["results"]}
    return by_rule, msgspec.Raw(msgspec.json.encode(validated))


def read_result(
    rule: SummaryRule[P], breaks: Sequence[int], places: Sequence[P], found: Mapping[str, Any] | None
) -> RuleResult:
    """Great Expectations' result of one rule, as ours; a crash is never a verdict."""
    if found is None:
        return _crashed(rule, "Great Expectations gave no result of this rule")
    crash = _crash(found)
    if crash is not None:
        return _crashed(rule, crash)
    return RuleResult(
        rule=rule.id,
        sentence=rule.sentence,
        outcome=RuleOutcome.PASSED if found["success"] is True else RuleOutcome.FAILED,
        observed=sum(breaks),
        unexpected=int(found["result"]["unexpected_count"]),
        checked=int(found["result"]["element_count"]),
        worst=_worst(rule, breaks, places),
        severity=rule.severity,
        blocking=rule.blocking,
    )


def _crash(found: Mapping[str, Any]) -> str | None:
    """Why an expectation about counts crashed; None when it has a verdict."""
    exception = _find_exception(found)
    if exception:
        return exception
    # A crashed expectation resembles a failed one, with other fields.
    if "unexpected_count" in (found.get("result") or {}):
        return None
    return "Great Expectations gave a result without counts"


def _find_exception(found: Mapping[str, Any]) -> str | None:
    info = found.get("exception_info") or {}
    # Its own exceptions are here, those of its metrics one level below.
    of_metrics = [inner for inner in info.values() if isinstance(inner, Mapping)]
    for part in (info, *of_metrics):
        if part.get("raised_exception"):
            return str(part.get("exception_message") or "an exception without a message")
    return None


def _worst(rule: SummaryRule[P], breaks: Sequence[int], places: Sequence[P]) -> tuple[dict[str, Cell], ...]:
    broken = sorted((-count, number) for number, count in enumerate(breaks) if count)
    worst: list[dict[str, Cell]] = []
    for _, number in broken[:WORST_MAX]:
        cells: dict[str, Cell] = {name: getattr(places[number], name) for name in rule.shown}
        if rule.counted:
            cells[rule.counted] = breaks[number]
        worst.append(cells)
    return tuple(worst)


def _crashed(rule: SummaryRule[P], reason: str) -> RuleResult:
    return _without_verdict(rule, RuleOutcome.CRASHED, None, reason)


def _nothing(rule: SummaryRule[P]) -> RuleResult:
    return _without_verdict(rule, RuleOutcome.NOTHING, 0, rule.missing)


def _without_verdict(rule: SummaryRule[P], outcome: RuleOutcome, observed: int | None, reason: str) -> RuleResult:
    return RuleResult(
        rule=rule.id,
        sentence=rule.sentence,
        outcome=outcome,
        observed=observed,
        reason=reason,
        severity=rule.severity,
        blocking=rule.blocking,
    )


def judge_expectations(rules: Sequence[Expectation], rows: DataFrame, count: int) -> dict[str, Judged]:
    """Judge the user's own expectations on rows, each with separate Spark jobs; times without a zone are UTC.

    Args:
        rules: The rules.
        rows: The rows to check, at least one.
        count: Their number.

    Returns:
        The result of each rule, by its id.
    """
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_spark("rows", persist=False).add_dataframe_asset("increment")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": rows})
    with _in_utc():
        return {rule.name: _judge_expectation(rule, batch, count) for rule in rules}


@contextmanager
def _in_utc() -> Iterator[None]:
    """Let UTC be the local time of this process: Spark exchanges times with Python in local time."""
    zone = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        if zone is not None:
            os.environ["TZ"] = zone
        time.tzset()


def _to_utc(value: object) -> object:
    """An argument whose times are UTC, without a zone as those of Spark: Python compares no others."""
    if isinstance(value, list | tuple):
        return [_to_utc(item) for item in value]
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _judge_expectation(rule: Expectation, batch: Batch, count: int) -> Judged:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    summary = judge_rows(rule)
    try:
        arguments = {name: _to_utc(value) for name, value in rule.arguments.items()}
        configuration = ExpectationConfiguration(type=rule.type, kwargs=arguments)
        found: dict[str, Any] = batch.validate(configuration.to_domain_obj(), result_format="SUMMARY").to_json_dict()
    except Exception as error:  # noqa: BLE001  # the user's own expectation: its errors are those of one rule
        return Judged((_crashed(summary, f"{type(error).__name__}: {error}"),))
    crash = _find_exception(found)
    if crash is not None:
        return Judged((_crashed(summary, crash),))
    details = found.get("result") or {}
    failed = found["success"] is not True
    outcome = RuleOutcome.FAILED if failed else RuleOutcome.PASSED
    observed = f"observed {details['observed_value']}" if "observed_value" in details else ""
    result = _without_verdict(summary, outcome, int(failed), observed)
    result = msgspec.structs.replace(result, unexpected=int(failed), checked=1, rows=count)
    return Judged((result,), msgspec.Raw(msgspec.json.encode(found, enc_hook=_to_plain)))


def _to_plain(value: Any) -> object:
    """What Great Expectations leaves as numpy's, such as the verdicts about quantiles; else a text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
