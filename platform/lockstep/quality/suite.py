"""Judges measured places with Great Expectations: one expectation per rule, a value object as result.

Surprises of its version 1.24 that are handled here: results come in another order than the suite (rules
are found by their id in `meta`); a crashed expectation looks like a failed one with other fields; nulls
are excluded from column checks, so a column of nulls passes (counts are built as integers, which cannot
be null); importing it takes seconds and 300 MB (so it is imported on use).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.quality.rules import Cell, P, Rule, RuleOutcome, RuleResult

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


def judge_summary(rules: Sequence[Rule[P]], places: Sequence[P]) -> Judged:
    """Judge the rules at all places.

    Args:
        rules: The rules; their ids differ.
        places: The measurements, one per place.
    """
    breaks = {rule.id: [rule.breaks(place) for place in places] for rule in rules}
    with_evidence = [rule for rule in rules if any(breaks[rule.id]) or any(map(rule.evidence, places))]
    found, raw = validate({rule.id: rule.id for rule in with_evidence}, breaks) if with_evidence else ({}, None)
    results = (
        read_result(rule, breaks[rule.id], places, found.get(rule.id)) if rule in with_evidence else _nothing(rule)
        for rule in rules
    )
    return Judged(tuple(results), raw)


def list_not_judged(rules: Sequence[Rule[P]], reason: str) -> Judged:
    """All rules as crashed: their measurements are not available."""
    return Judged(tuple(_crashed(rule, reason) for rule in rules))


def validate(
    columns: Mapping[str, str], breaks: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Mapping[str, Any]], msgspec.Raw]:
    """Validate with Great Expectations that there are no breaks, in one column per rule.

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
    found: dict[str, Any] = batch.validate(suite, result_format="BASIC").to_json_dict()  # type: ignore[no-untyped-call]  # not typed there
    by_rule = {result["expectation_config"]["meta"]["rule"]: result for result in found["results"]}
    return by_rule, msgspec.Raw(msgspec.json.encode(found))


def read_result(
    rule: Rule[P], breaks: Sequence[int], places: Sequence[P], found: Mapping[str, Any] | None
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
    )


def _crash(found: Mapping[str, Any]) -> str | None:
    """Why an expectation crashed; None when it has a verdict."""
    said = found.get("exception_info") or {}
    # Its own exceptions are here, those of its metrics one level below.
    for part in (said, *(inner for inner in said.values() if isinstance(inner, Mapping))):
        if part.get("raised_exception"):
            return str(part.get("exception_message") or "an exception without a message")
    counted = "unexpected_count" in (found.get("result") or {})
    return None if counted else "Great Expectations gave a result without counts"


def _worst(rule: Rule[P], breaks: Sequence[int], places: Sequence[P]) -> tuple[dict[str, Cell], ...]:
    broken = sorted((-count, number) for number, count in enumerate(breaks) if count)
    return tuple({name: getattr(places[number], name) for name in rule.shown} for _, number in broken[:WORST_MAX])


def _crashed(rule: Rule[P], reason: str) -> RuleResult:
    return RuleResult(rule=rule.id, sentence=rule.sentence, outcome=RuleOutcome.CRASHED, observed=None, reason=reason)


def _nothing(rule: Rule[P]) -> RuleResult:
    return RuleResult(
        rule=rule.id, sentence=rule.sentence, outcome=RuleOutcome.NOTHING, observed=0, reason=rule.missing
    )
