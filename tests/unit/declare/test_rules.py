"""Rules are checked when declared, and judged inline like any error of the transform."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import Envelope, Kind, LogOnly, NoIntegrity, Ordered, Record, Stream, Strict, Suspend, TableFold, Topics
from lockstep.declare.rules import Rule, check_rules
from lockstep.declare.stream import format_source
from lockstep.errors import DeclarationError
from lockstep.model.finding import TEXT_MAX
from lockstep.rules import (
    Expectation,
    InRange,
    InSet,
    Matches,
    NotNull,
    OnViolation,
    Predicate,
    References,
    Scope,
    Severity,
    Unique,
)
from lockstep.testing import run
from tests.unit.declare.ruled_rows import ALL, ROWS, Message, Ruled, find_verdicts, ruled


@pytest.mark.parametrize(("row", "violated"), ROWS)
def test_a_row_keeps_a_rule_or_violates_it(row: Ruled, violated: set[str]) -> None:
    assert {name for name, kept in find_verdicts(ALL, row).items() if not kept} == violated


def test_a_stream_is_declared_with_rules_and_goes_to_executors() -> None:
    stream = ruled(*ALL, Unique(("name", "count")), Predicate("count > 0", id="counted"))
    assert pickle.loads(stream.shipped()).rules == stream.rules  # noqa: S301  # our own
    assert [rule.name for rule in stream.rules][-2:] == ["name_count_unique", "counted"]
    assert [rule.promise for rule in stream.rules][:3] == [
        "number is never null.",
        "number is at least 0.",
        "number is at most 10 or null.",
    ]


WRONG: list[tuple[Rule, str]] = [
    (NotNull("price"), "NotNull.column = 'price': is not a column of the row type\n  next: one of: name, number"),
    (NotNull("name"), "is not optional in the row type"),
    (NotNull("number", id="Number"), "NotNull.id = 'Number': is not an id"),
    (NotNull("number", id="sequence"), "is the id of a built-in check"),
    (NotNull("number", severity="critical"), "severity = 'critical': is not of type Severity"),  # type: ignore[arg-type]  # on purpose
    (NotNull("number", blocking=True), "is not critical\n  next: severity=Severity.CRITICAL"),
    (InRange("number"), "and at_most are missing"),
    (InRange("number", at_least=2, at_most=1), "at_least = 2: is greater than at_most=1"),
    (InRange("number", at_least=float("nan")), "at_least = nan: is not a bound"),
    (InRange("count", at_least=0.5), "at_least = 0.5: is not a bound of a column of type integer"),
    (InRange("count", at_least=True), "at_least = True: is not a bound"),
    (InRange("at", at_least=datetime(2020, 1, 1)), "is not a bound of a column of type timestamp"),  # noqa: DTZ001  # on purpose
    (InRange("name", at_least=0), "is a column of type string"),
    (InRange("count", at_most=2**63), "is not a bound of a column of type integer"),
    (InRange("amount", at_most=Decimal("Infinity")), "is not a bound of a column of type decimal"),
    (InSet("name", "ab"), "values = 'ab': is not a set of values"),
    (InSet("name", []), "is not a set of values"),
    (InSet("count", {1, "1"}), "is not a value of a column of type integer"),
    (InSet("count", {1, 2**63}), "values = 9223372036854775808: is not a value of a column of type integer"),
    (InSet("colour", ["red", "green"]), "values = 'green': is not a value of a column of type enum"),
    (InSet("number", {1}), "is a column of type float"),
    (Matches("name", "("), "is not a regular expression"),
    (Matches("name", "(?u)a"), "is not a regular expression: ASCII and UNICODE flags are incompatible"),
    (Matches("name", "a{99999999999}"), "is not a regular expression: the repetition number is too large"),
    (Matches("name", "[[a]"), "is not a regular expression: Possible nested set"),
    (Matches("name", "[a-z&&b]"), "is not a regular expression: Possible set intersection"),
    *(
        (Matches("name", pattern), f"has {part}, which Java reads otherwise")
        for pattern, part in (
            ("(?P<a>.)", "(?P"),
            ("(?a).", "(?a"),
            ("(?ix)[ ]", "(?ix"),
            ("(a)?(?(1)b)", "(?("),
            ("[a-z[]", "["),
            ("[A-Z]{,3}", "{"),
            ("a{1a", "{"),
            ("a{2,1", "{"),
            ("a{2147483648}", "{"),
            (r"\\\bfoo", r"\b"),
            (r"\101", r"\101"),
            (r"\0", r"\0"),
        )
    ),
    (Matches("count", "1"), "is a column of type integer"),
    (Unique(()), "names none, or one twice"),
    (Unique(("name", "price")), "Unique.columns = 'price'"),
    (Unique("name", on_violation=OnViolation.FAIL), "needs a rule about one column of one row"),
    (Unique("name", scope="table"), "is not of type Scope"),  # type: ignore[arg-type]  # on purpose
    (References("nowhere", "names/table"), "References.column = 'nowhere': is not a column of the row type"),
    (References("name", "../names"), "References.table = '../names': leaves the table root"),
    (References("name", "s3://names"), "is an address"),
    (References("name", "names", on_violation=OnViolation.FAIL), "needs a rule about one column of one row"),
    (Predicate(" ", id="empty"), "is not a condition"),
    (Predicate("count > 0"), "Predicate.id = '': is missing"),
    (Expectation("mean"), "is not the name of an expectation"),
    (Expectation("expect_column_mean_to_be_between", {"column": "price"}), "Expectation.arguments = 'price'"),
    (Expectation("expect_pair", {"column_A": "name", "column_B": "price"}), "Expectation.arguments = 'price'"),
    (Expectation("expect_compound", {"column_list": ["name", "price"]}), "Expectation.arguments = 'price'"),
    (
        Expectation("unexpected_rows_expectation", {"unexpected_rows_query": "select 1"}),
        "is not the name of an expectation",
    ),
    (Expectation("expect_query", {"query": "select * from {batch}"}), "is one view for all checks"),
]


class Backwards(set[str]):
    """A set in another order, as another process may have it."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), reverse=True))


def test_an_expectation_about_a_set_is_the_same_rule_in_each_process() -> None:
    names = {"b", "a", "c"}
    given = (sorted(names), tuple(sorted(names, reverse=True)), frozenset(names), Backwards(names))
    rules = [Expectation("expect_column_values_to_be_in_set", {"column": "name", "value_set": each}) for each in given]
    assert {format_source(rule) for rule in rules} == {format_source(rules[0])}
    assert rules[0].arguments["value_set"] == ["a", "b", "c"]


@pytest.mark.parametrize(("rule", "problem"), WRONG, ids=lambda value: getattr(value, "name", None))
def test_a_wrong_rule_is_refused_with_its_field_and_a_next_step(rule: Rule, problem: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        ruled(rule)
    assert problem in str(refused.value)
    assert refused.value.next_step


@pytest.mark.parametrize(
    "pattern", [r"\d{1,3}(\.\d+)?", r"\{.*\}", r"[\[\]]+", r"[]a]+", r"\\", r"\x00|\u00e4", "(?i)a|(?:b)++"]
)
def test_what_python_and_java_read_alike_is_a_pattern(pattern: str) -> None:
    assert ruled(Matches("name", pattern)).rules


class Tagged(msgspec.Struct):
    tags: dict[str, int]
    parts: list[dict[str, int]]


@pytest.mark.parametrize("column", ["tags", "parts"])
def test_a_column_with_a_dict_is_neither_unique_nor_a_key(column: str) -> None:
    for rule in (Unique(column), References(column, "tags")):
        with pytest.raises(DeclarationError, match="holds a dict, whose values Spark does not compare"):
            check_rules([rule], Tagged)


@pytest.mark.parametrize("wrong", [Expectation, {"type": "expect_x"}], ids=["a class", "a dict"])
def test_what_is_no_expectation_makes_no_rule(wrong: object) -> None:
    with pytest.raises(
        DeclarationError, match=r"Expectation\.from_gx = .*: is not an expectation\n  next: for example Expect"
    ):
        Expectation.from_gx(wrong)


def test_two_rules_have_two_ids() -> None:
    with pytest.raises(DeclarationError, match="is the id of two rules"):
        ruled(InRange("number", at_least=0), InRange("number", at_most=1))
    with pytest.raises(DeclarationError, match="is not a rule"):
        ruled("number > 0")  # type: ignore[arg-type]  # on purpose


def test_a_class_that_promises_every_message_leaves_none_out() -> None:
    rule = NotNull("number", on_violation=OnViolation.QUARANTINE)
    strict = Strict(evidence=LogOnly())
    with pytest.raises(DeclarationError, match=r"Strict with Halt\(\) promises that none is missing"):
        ruled(rule, integrity=strict)
    assert ruled(rule, integrity=Strict(evidence=LogOnly(), on_violation=Suspend())).rules


def sent(*rows: Ruled, kind: Kind = Kind.UPDATE) -> Message:
    return Message(list(rows), kind)


GOOD = Ruled()
BAD = Ruled(number=None)
FIRST = sent(GOOD, kind=Kind.SNAPSHOT)


@pytest.mark.parametrize("split", [None, 1])
def test_a_message_whose_row_violates_a_rule_is_quarantined_and_leaves_no_trace(split: int | None) -> None:
    """The first row is good, and the state had already counted both rows."""
    stream = ruled(NotNull("number", on_violation=OnViolation.QUARANTINE))
    ran = run(stream, FIRST, sent(GOOD, BAD), sent(GOOD, GOOD), key="k", split=split)
    assert ran.rows == [GOOD] * 3
    assert ran.states["k"].rows == 3
    (kept,) = ran.quarantine
    assert (kept.offset, kept.session, kept.cause) == (1, "k", "number_not_null")
    assert (kept.expected, kept.found) == ("number is never null", "number = None")
    assert ran.verdicts[1].cause == "number_not_null"


def test_a_class_that_keeps_order_suspends_the_session() -> None:
    stream = ruled(NotNull("number", on_violation=OnViolation.QUARANTINE), integrity=Ordered())
    ran = run(stream, FIRST, sent(BAD), sent(GOOD), FIRST, key="k")
    assert [kept.offset for kept in ran.quarantine] == [1, 2]
    assert ran.rows == [GOOD] * 2


@pytest.mark.parametrize("integrity", [NoIntegrity(), Strict(evidence=LogOnly()), Ordered()])
def test_a_rule_that_fails_halts_whatever_the_class_tolerates(integrity: NoIntegrity | Strict | Ordered) -> None:
    stream = ruled(InRange("count", at_least=1, on_violation=OnViolation.FAIL), integrity=integrity)
    ran = run(stream, FIRST, sent(GOOD), sent(Ruled(count=0)), sent(GOOD), key="k")
    assert ran.finding is not None
    assert (ran.finding.offset, ran.finding.cause) == (2, "count_in_range")
    assert (ran.finding.expected, ran.finding.found) == ("count is at least 1", "count = 0")
    assert (len(ran.rows), ran.states["k"].rows) == (2, 2)


@pytest.mark.parametrize("policy", [OnViolation.FAIL, OnViolation.QUARANTINE])
def test_a_large_value_that_violates_a_rule_is_shown_in_part(policy: OnViolation) -> None:
    """Otherwise the commit of the halt and each event would hold the full value, with NUL as four characters."""
    ran = run(ruled(Matches("name", "[a-z]", on_violation=policy)), FIRST, sent(Ruled(name="\0" * 10**6)), key="k")
    (shown,) = [each.found or "" for each in (*ran.quarantine, ran.finding) if each is not None]
    assert (len(shown), shown[:16], shown[-5:]) == (TEXT_MAX, r"name = '\x00\x00", "0 ...")


def test_the_rows_of_a_snapshot_and_of_an_end_are_judged_too() -> None:
    stream = ruled(
        InRange("count", at_least=0, on_violation=OnViolation.QUARANTINE, severity=Severity.CRITICAL),
        Unique(("name", "count"), scope=Scope.SESSION),
    )
    ran = run(stream, sent(Ruled(count=-1), kind=Kind.SNAPSHOT), FIRST, sent(kind=Kind.END), key="k")
    assert [(kept.offset, kept.cause) for kept in ran.quarantine] == [(0, "count_in_range"), (2, "count_in_range")]
    assert ran.rows == [GOOD]
    assert ran.states["k"].rows == 1


class Item(msgspec.Struct):
    """A message: values by name; None removes a value."""

    kind: str
    values: dict[str, int | None] = {}


class ItemRow(msgspec.Struct):
    """A row; without a value, the name was removed."""

    name: str
    value: int | None


class Items(TableFold[Item, str, int, ItemRow]):
    """A fold of values by name."""

    key = ("name",)
    removed = "value"

    def envelope(self, message: Item, record: Record) -> Envelope:
        return Envelope("s", Kind(message.kind))

    def changes(self, message: Item) -> Iterable[tuple[str, int | None]]:
        return message.values.items()

    def emit(self, message: Item | None, key: str, new: int | None, previous: int | None) -> ItemRow:
        return ItemRow(key, new)


ITEMS = Stream(
    name="items",
    topics=Topics(pattern="items"),
    transform=Items(),
    integrity=NoIntegrity(),
    rules=[
        NotNull("value", on_violation=OnViolation.QUARANTINE),
        InRange("value", at_least=0, on_violation=OnViolation.QUARANTINE),
    ],
)


@given(
    st.lists(
        st.builds(
            Item,
            st.sampled_from(["snapshot", "update", "update", "end"]),
            st.dictionaries(st.sampled_from("pqr"), st.none() | st.integers(-1, 3), max_size=3),
        ),
        max_size=12,
    )
)
def test_a_removal_keeps_every_rule_and_a_bad_value_in_a_snapshot_leaves_out_all_of_it(messages: list[Item]) -> None:
    """Otherwise a rule could prevent removals: the row of a removed key has no value."""
    ran = run(ITEMS, *messages)
    bad = [at for at, each in enumerate(messages) if each.kind != "end" and -1 in each.values.values()]
    assert [(kept.offset, kept.cause) for kept in ran.quarantine] == [(at, "value_in_range") for at in bad]
    left: dict[str, int | None] = {}
    for row in ran.rows:
        left[row.name] = row.value
    assert {name: value for name, value in left.items() if value is not None} == ran.states.get("s", {})


def test_a_rule_that_warns_changes_nothing() -> None:
    ran = run(ruled(NotNull("number")), FIRST, sent(BAD), key="k")
    assert ran.rows == [GOOD, BAD]
    assert ran.finding is None
