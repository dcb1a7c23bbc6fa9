"""The second reading of inline rules agrees with the writer's on any row, and finds a writer with a wrong reading."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from lockstep import InitialState
from lockstep.declare.rules import ColumnRule, Rule, check_first_rows, check_rows, check_rules, find_inline_rules
from lockstep.errors import Violation
from lockstep.rules import InRange, InSet, Matches, NotNull, OnViolation
from lockstep.verify.inline_rules import read_inline_rules
from lockstep.verify.report import InvariantStatus, ViolationKind
from lockstep.verify.verify import verify_stream
from tests.correctness.verify.clean_meters import clean_meters
from tests.unit.declare.ruled_rows import ALL, ROWS, Colour, Ruled

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

INLINE = st.sampled_from([OnViolation.QUARANTINE, OnViolation.FAIL])
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # hypothesis adds it
DAYS = st.dates(date(1900, 1, 1), date(2100, 1, 1))
AMOUNTS = st.decimals(-1000, 1000, places=2) | st.sampled_from(list(map(Decimal, ("NaN", "sNaN", "-0", "Infinity"))))
NUMBERS = st.floats(-10, 10) | st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 2.0**53, 2.0**53 + 2])
COUNTS = st.integers(-10, 10) | st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63)])
NAMES = st.text("ab\n\u00e4\u0663", max_size=3) | st.sampled_from(["a", "ab", "", "\ud800"])
PATTERNS = st.sampled_from([r"[a-z]", r"a|ab", r"\w*", r"\d", r".*$", r"(?i)A.?", r"(a|b)+", r"[^a]*\n?"])


def bounds(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return one bound or both, which may be equal."""
    one = values.flatmap(lambda value: st.sampled_from([{"at_least": value}, {"at_most": value}]))
    two = st.tuples(values, values).map(lambda pair: {"at_least": min(pair), "at_most": max(pair)})
    return one | two


def ranges(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Rule]:
    """Return ranges of one column."""
    return st.builds(
        lambda given, nullable, then: InRange(column, **given, nullable=nullable, on_violation=then),
        bounds(values),
        st.booleans(),
        INLINE,
    )


def is_bound(value: Any) -> bool:
    return bool(value.is_finite()) if isinstance(value, Decimal) else value == value  # noqa: PLR0124  # NaN is not a bound


class EvenCount(ColumnRule):
    """A user's rule."""

    suffix = "even"

    @override
    def accepts(self, value: object) -> bool:
        return isinstance(value, int) and value % 2 == 0

    @override
    def _default_sentence(self) -> str:
        return "count is even."


RULES = st.one_of(
    ranges("number", NUMBERS.filter(is_bound) | st.integers(-10, 10)),
    ranges("count", COUNTS),
    ranges("amount", AMOUNTS.filter(is_bound) | st.integers(-10, 10)),
    ranges("at", MOMENTS),
    ranges("day", DAYS),
    st.builds(
        lambda column, then: NotNull(column, on_violation=then), st.sampled_from(["number", "at", "day"]), INLINE
    ),
    st.builds(
        lambda values, nullable, then: InSet("day", values, nullable=nullable, on_violation=then),
        st.sets(DAYS, min_size=1, max_size=3),
        st.booleans(),
        INLINE,
    ),
    st.builds(
        lambda values, then: InSet("name", values, on_violation=then), st.sets(NAMES, min_size=1, max_size=4), INLINE
    ),
    st.builds(lambda values, then: InSet("count", values, on_violation=then), st.sets(COUNTS, min_size=1), INLINE),
    st.builds(
        lambda values, then: InSet("colour", values, on_violation=then),
        st.sets(st.sampled_from([Colour.RED, "blue"]), min_size=1),
        INLINE,
    ),
    st.builds(
        lambda column, pattern, then: Matches(column, pattern, on_violation=then),
        st.sampled_from(["name", "colour"]),
        PATTERNS | NAMES.filter(lambda text: "\ud800" not in text),
        INLINE,
    ),
    st.builds(lambda then: EvenCount("count", on_violation=then), INLINE),
)


@st.composite
def ruled_rows(draw: st.DrawFn) -> tuple[list[Rule], list[Ruled], str | None]:
    """Draw rules, rows whose values are often those of the rules (at a bound, or a member), and the removal column."""
    drawn = draw(st.lists(RULES, min_size=1, max_size=5))
    rules = [dataclasses.replace(rule, id=f"r{number}") for number, rule in enumerate(drawn)]
    near = {column: values | st.sampled_from(list_values(rules, column) or [None]) for column, values in VALUES.items()}
    rows = st.builds(lambda changes: msgspec.structs.replace(Ruled(), **changes), st.fixed_dictionaries(near))
    return rules, draw(st.lists(rows, max_size=4)), draw(st.none() | st.sampled_from(["number", "at"]))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": NAMES,
    "number": st.none() | NUMBERS,
    "count": COUNTS,
    "colour": st.sampled_from(Colour),
    "amount": AMOUNTS,
    "at": st.none() | MOMENTS,
    "day": st.none() | DAYS,
}


def list_values(rules: Iterable[Rule], column: str) -> list[Any]:
    """Return the values of a column that its rules name, and their neighbours."""
    named = list[Any]()
    for rule in rules:
        if isinstance(rule, InRange) and rule.column == column:
            named += [bound for bound in (rule.at_least, rule.at_most) if bound is not None]
        elif isinstance(rule, InSet) and rule.column == column and column != "colour":
            named += rule.values
    steps = {datetime: timedelta(microseconds=1), date: timedelta(days=1), Decimal: Decimal("0.01")}
    return named + [each + steps.get(type(each), 1) for each in named if not isinstance(each, str)]


def outcome(judge: Callable[[], object]) -> object:
    """Return the rows of a message after a reading, or the cause and whether the stream halts."""
    try:
        return read_all(judge())
    except Violation as broken:
        return broken.what, getattr(broken, "halts", None)
    except Exception as error:  # noqa: BLE001  # values that no column of the row type holds
        return type(error)


def read_all(found: object) -> object:
    """Return rows as a list, as they may be judged while they are read; for a first state, also its rows."""
    if isinstance(found, InitialState):
        return found.state, list(found.rows)
    return list(found) if isinstance(found, Iterable) else found


@given(ruled_rows())
def test_both_readings_agree_on_any_row(case: tuple[list[Rule], list[Ruled], str | None]) -> None:
    rules, rows, removed = case
    check_rules(rules, Ruled)
    ours = read_inline_rules(rules, removed)
    theirs = find_inline_rules(rules, removed)
    assert outcome(ours.guard(lambda: iter(rows))) == outcome(check_rows(theirs, lambda: iter(rows)))
    state = InitialState(1, rows)
    assert outcome(ours.guard_snapshot(lambda: state)) == outcome(check_first_rows(theirs, lambda: state))


@pytest.mark.parametrize(("row", "violated"), ROWS)
def test_the_second_reading_of_each_rule(row: Ruled, violated: set[str]) -> None:
    broken = set[object]()
    for rule in ALL:
        inline = dataclasses.replace(rule, on_violation=OnViolation.QUARANTINE)
        found = outcome(lambda inline=inline: read_inline_rules([inline], None).check([row]))  # type: ignore[misc]  # a default
        broken |= {found[0]} if isinstance(found, tuple) else set()
    assert broken == violated


def test_only_rules_that_quarantine_or_fail_are_read() -> None:
    assert read_inline_rules([NotNull("number"), InRange("count", at_least=1)], None).rules == ()
    plain = [Ruled(number=None)]
    state = object()
    assert read_inline_rules([], None).guard(lambda: plain)() is plain
    assert read_inline_rules([], None).guard_snapshot(lambda: state)() is state


NUMBER_MAX = 6
RULE = InRange("number", at_most=NUMBER_MAX, nullable=True, on_violation=OnViolation.QUARANTINE)
WRONG: dict[str, tuple[Callable[[Any, Any], bool], ViolationKind]] = {
    "a bound belongs to no range": (lambda rule, value: value < rule.at_most, ViolationKind.QUARANTINE_EXTRA),
    "each value is in range": (lambda _, value: bool(value), ViolationKind.QUARANTINE_MISSING),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_writer_that_reads_a_rule_wrongly_is_found(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The fault stays in the library during the proof: shared code would find the table proven."""
    accepts, kind = WRONG[fault]
    monkeypatch.setattr(InRange, "accepts", accepts)
    made = clean_meters(1, broker.bootstrap_servers, tmp_path, expires=False, rules=(RULE,))
    found = verify_stream(made.runs.stream, made.runs.folders, made.runs.settings.kafka)
    assert found.status is InvariantStatus.VIOLATED
    assert kind in {each.kind for each in found.violations}


def test_rows_that_a_rule_halts_at_were_read_past(broker: Broker, tmp_path: Path) -> None:
    """A rule that fails stops a stream of any class: a table with such rows was written without the rule."""
    made = clean_meters(1, broker.bootstrap_servers, tmp_path, expires=False)
    halting = dataclasses.replace(RULE, on_violation=OnViolation.FAIL)
    stream = dataclasses.replace(made.runs.stream, rules=(halting,))
    found = verify_stream(stream, made.runs.folders, made.runs.settings.kafka)
    past = [each for each in found.violations if each.kind is ViolationKind.PAST_VIOLATION]
    assert {RULE.name in str(each) for each in past} == {True}
