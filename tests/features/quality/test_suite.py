"""Great Expectations judges measurements; its crashes are errors, and it loads in any Python process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lockstep.features.quality.rules import RuleOutcome, SummaryRule
from lockstep.features.quality.suite import judge_summary, list_not_judged, read_result, validate


class Place(msgspec.Struct, frozen=True):
    name: str
    high: int
    low: int


PLACES = [Place("one", 0, 0), Place("two", 3, 0), Place("three", 7, 0)]


def rule(name: str) -> SummaryRule[Place]:
    return SummaryRule(
        id=name,
        sentence=f"{name} is zero.",
        breaks=lambda place: int(getattr(place, name)),
        evidence=lambda _: 1,
        missing="no place",
        shown=("name", name),
    )


HIGH = rule("high")
LOW = rule("low")


def test_each_rule_has_its_own_result_whatever_the_order() -> None:
    low, high = judge_summary([LOW, HIGH], PLACES).results
    assert (low.rule, low.outcome, low.observed, low.unexpected, low.checked) == ("low", RuleOutcome.PASSED, 0, 0, 3)
    assert (high.rule, high.outcome, high.observed, high.unexpected, high.checked) == (
        "high",
        RuleOutcome.FAILED,
        10,
        2,
        3,
    )
    assert high.worst == ({"name": "three", "high": 7}, {"name": "two", "high": 3})


def test_a_crashed_expectation_is_an_error_and_never_a_verdict() -> None:
    found, _ = validate({"high": "nowhere", "low": "low"}, {"low": [0, 0, 0]})
    crashed = read_result(HIGH, [0, 0, 0], PLACES, found["high"])
    assert (crashed.outcome, crashed.observed) == (RuleOutcome.CRASHED, None)
    assert "nowhere" in crashed.reason
    assert read_result(LOW, [0, 0, 0], PLACES, found["low"]).passed


def test_a_rule_without_a_result_is_an_error() -> None:
    assert read_result(HIGH, [0], PLACES[:1], None).crashed
    assert [result.crashed for result in list_not_judged([HIGH, LOW], "unreadable").results] == [True, True]


def test_a_rule_without_evidence_is_not_passed() -> None:
    judged = judge_summary([HIGH], [])
    assert [result.outcome for result in judged.results] == [RuleOutcome.NOTHING]
    assert judged.raw is None


PROGRAM = """
from tests.features.quality.test_suite import LOW, PLACES
from lockstep.features.quality.suite import judge_summary
print("outcome:", judge_summary([LOW], PLACES).results[0].outcome.value)
"""


@pytest.mark.parametrize("way", [pytest.param("a script", marks=pytest.mark.slow), "python -c"])
def test_great_expectations_loads_in_a_process_of_its_own(way: str, tmp_path: Path) -> None:
    script = tmp_path / "judge.py"
    script.write_text(PROGRAM)
    arguments = [str(script)] if way == "a script" else ["-c", PROGRAM]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert "outcome: passed" in done.stdout, done.stderr  # an exit code of 0 alone is not enough
    assert done.returncode == 0
