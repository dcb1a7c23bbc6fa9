"""Rules about the rows of a stream: what to promise, how bad a violation is, and what happens then.

A rule is data. Checks compile it into Spark (lockstep.features.quality). Rules that quarantine or fail also run inline,
on each row that the transform emits, before it is committed. A rule is violated unless it is true: null, NaN and a
failed conversion violate it, unless the rule is declared nullable.

The row of a removed key has no values, so rules about the values of a row pass over it. `Unique` and `Expectation` see
all rows.
"""

from __future__ import annotations

import enum
import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from msgspec.structs import replace
from typing_extensions import override

from lockstep.declare.lookup import find_path_problem
from lockstep.declare.transform import InitialState
from lockstep.errors import DeclarationError, Violation
from lockstep.model.declaration import Declaration

if TYPE_CHECKING:
    import msgspec

    from lockstep.model.columns import Column, ColumnKind


class Severity(enum.Enum):
    """How bad a violation is: critical is an error in Dagster, the others are warnings."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class OnViolation(enum.Enum):
    """What happens to the message whose row violates a rule."""

    WARN = "warn"
    """Nothing: the row is committed, and the check of the table reports it."""
    QUARANTINE = "quarantine"
    """As if the transform had raised: the message goes to quarantine, with the rule's id as cause."""
    FAIL = "fail"
    """The stream halts before the message."""


class Scope(enum.Enum):
    """Rows among which values are unique."""

    MESSAGE = "message"
    SESSION = "session"
    TABLE = "table"


ID = re.compile(r"[a-z][a-z0-9_]{0,62}")
BUILT_IN: Mapping[str, str] = {
    "completeness": "Every offset is in one ledger range, and every message is in the table or counted under a cause.",
    "rows_match_ledger": "The table holds as many rows of each batch as the ledger records.",
    "no_duplicates": "No two rows have the same topic id, partition, emit offset and row number.",
    "sequence": "The producer's numbers never fall inside a session, and none is used by two messages.",
    "proof_not_null": "Every row names its source: no proof column is null.",
}
"""The rules that every table has: their ids and promises."""
_TAKEN = (*BUILT_IN, "health")


@dataclass(frozen=True, kw_only=True)
class Rule(Declaration):
    """A promise about the rows of a table, checked as its own expectation and its own asset check.

    Attributes:
        id: Lower-case name, unique in the stream; by default made of the column and the kind of rule.
        severity: How bad a violation is.
        blocking: Downstream assets wait while the check of this rule has failed; only of a critical rule.
        on_violation: What happens to the message; only `WARN` for rules that need more than one row.
        sentence: The promise, for people; by default made of the rule.
    """

    id: str = ""
    severity: Severity = Severity.WARNING
    blocking: bool = False
    on_violation: OnViolation = OnViolation.WARN
    sentence: str = ""

    runs_inline: ClassVar[bool] = False
    """Whether one row is enough to judge it, in Python."""

    @property
    def name(self) -> str:
        """The id, or the default one."""
        return self.id or self._default_id()

    @property
    def promise(self) -> str:
        """The sentence, or the default one."""
        return self.sentence or self._default_sentence()

    @property
    def is_inline(self) -> bool:
        """Whether it is judged before the row is committed."""
        return self.on_violation is not OnViolation.WARN

    def check(self, columns: Mapping[str, Column]) -> None:
        """Check the declaration against the columns of the row type.

        Raises:
            DeclarationError: Names the field, the value and a valid alternative.
        """
        if not ID.fullmatch(self.name) or self.name in _TAKEN:
            problem = "is the id of a built-in check" if self.name in _TAKEN else "is not an id"
            raise self.error("id", self.name, problem, "lower-case letters, digits and _: id='price_is_positive'")
        for name, kind in (("severity", Severity), ("on_violation", OnViolation)):
            if not isinstance(getattr(self, name), kind):
                problem = f"is not of type {kind.__name__}"
                instead = f"for example {next(iter(kind))}"
                raise self.error(name, getattr(self, name), problem, instead)
        if self.is_inline and not self.runs_inline:
            instead = "OnViolation.WARN, or raise Violation in the transform"
            raise self.error("on_violation", self.on_violation, "needs a rule about one column of one row", instead)
        if self.blocking and self.severity is not Severity.CRITICAL:
            problem = "would stop downstream assets for a rule that is not critical"
            raise self.error("blocking", self.blocking, problem, "severity=Severity.CRITICAL")

    def error(self, name: str, value: object, problem: str, instead: str) -> DeclarationError:
        """An error about one field of this rule."""
        return DeclarationError(f"Stream.rules: {type(self).__name__}.{name}", value, problem, instead)

    @abstractmethod
    def _default_id(self) -> str: ...

    @abstractmethod
    def _default_sentence(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class ColumnRule(Rule):
    """A promise about the values of one column."""

    column: str = field(kw_only=False)

    runs_inline = True
    suffix: ClassVar[str]

    @abstractmethod
    def accepts(self, value: object) -> bool:
        """Whether a value of the column keeps the promise. Null is judged before."""

    @property
    def allows_null(self) -> bool:
        """Whether null keeps the promise."""
        return bool(getattr(self, "nullable", False))

    def is_kept_by(self, row: msgspec.Struct) -> bool:
        """Whether a row keeps the promise."""
        value = getattr(row, self.column)
        if value is None:
            return self.allows_null
        return self.accepts(value)

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        self.require_column(columns, self.column)
        super().check(columns)

    def require_column(self, columns: Mapping[str, Column], name: str) -> Column:
        """A column of the row type.

        Raises:
            DeclarationError: There is none of this name.
        """
        return _require_column(self, "column", name, columns)

    def require_kind(self, columns: Mapping[str, Column], kinds: Collection[str]) -> ColumnKind:
        """The kind of the column.

        Raises:
            DeclarationError: It is none of these.
        """
        kind = columns[self.column].type.kind
        if kind.value not in kinds:
            problem = f"is a column of type {kind.value}"
            instead = f"a column of type {', '.join(kinds)}, or Predicate"
            raise self.error("column", self.column, problem, instead)
        return kind

    @override
    def _default_id(self) -> str:
        return f"{self.column}_{self.suffix}".lower()


def _require_column(rule: Rule, name: str, value: object, columns: Mapping[str, Column]) -> Column:
    if not isinstance(value, str) or value not in columns:
        raise rule.error(name, value, "is not a column of the row type", f"one of: {', '.join(columns)}")
    return columns[value]


def _require_comparable(rule: Rule, name: str, value: str, columns: Mapping[str, Column]) -> None:
    """Refuse a column whose values Spark cannot compare: it holds a dict."""
    if _holds_map(_require_column(rule, name, value, columns)):
        problem = "holds a dict, whose values Spark does not compare"
        instead = "a column without one, or Predicate"
        raise rule.error(name, value, problem, instead)


def _holds_map(column: Column) -> bool:
    return column.type.kind.value == "map" or any(map(_holds_map, column.type.children))


@dataclass(frozen=True)
class NotNull(ColumnRule):
    """No value of a column is null.

    Example: `NotNull("price")`
    """

    suffix = "not_null"

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        super().check(columns)
        if not columns[self.column].type.nullable:
            problem = "is not optional in the row type, which refuses None already"
            raise self.error("column", self.column, problem, "remove the rule")

    @override
    def accepts(self, value: object) -> bool:
        """See `ColumnRule.accepts`."""
        return True

    @override
    def _default_sentence(self) -> str:
        return f"{self.column} is never null."


Bound = int | float | Decimal | datetime | date
"""A bound of a range."""

_BOUNDS: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "float": (int, float),
    "decimal": (int, Decimal),
    "timestamp": (datetime,),
    "date": (date,),
}


@dataclass(frozen=True)
class InRange(ColumnRule):
    """The values of a column are in a range of one or two bounds, bounds included. NaN never is.

    Example: `InRange("price", at_least=0)`

    Attributes:
        at_least: Lowest value.
        at_most: Highest value.
        nullable: Null keeps the promise.
    """

    at_least: Bound | None = field(default=None, kw_only=True)
    at_most: Bound | None = field(default=None, kw_only=True)
    nullable: bool = field(default=False, kw_only=True)

    suffix = "in_range"

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        super().check(columns)
        kind = self.require_kind(columns, _BOUNDS)
        for name, bound in (("at_least", self.at_least), ("at_most", self.at_most)):
            if bound is not None and not _is_bound(bound, _BOUNDS[kind.value]):
                wanted = " or ".join(each.__name__ for each in _BOUNDS[kind.value])
                raise self.error(name, bound, f"is not a bound of a column of type {kind.value}", f"of type {wanted}")
        low: Any = self.at_least
        high: Any = self.at_most
        if low is None and high is None:
            raise self.error("at_least", None, "and at_most are missing", "for example at_least=0")
        if low is not None and high is not None and low > high:
            raise self.error("at_least", low, f"is greater than at_most={high}", "exchange the bounds")

    @override
    def accepts(self, value: Any) -> bool:
        """See `ColumnRule.accepts`."""
        low: Any = self.at_least
        high: Any = self.at_most
        if isinstance(value, Decimal) and value.is_nan():
            return False  # to compare it raises, which would be an error of the transform and not of the rule
        return (low is None or value >= low) and (high is None or value <= high)

    @override
    def _default_sentence(self) -> str:
        parts = list[str]()
        if self.at_least is not None:
            parts.append(f"at least {self.at_least}")
        if self.at_most is not None:
            parts.append(f"at most {self.at_most}")
        or_null = " or null" if self.nullable else ""
        return f"{self.column} is {' and '.join(parts)}{or_null}."


def _is_bound(bound: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(bound, bool) or not isinstance(bound, kinds):
        return False
    if isinstance(bound, datetime):
        return datetime in kinds and bound.utcoffset() is not None
    if isinstance(bound, Decimal):
        return bound.is_finite()
    if isinstance(bound, int):
        return _is_storable(bound)
    return not isinstance(bound, float) or not math.isnan(bound)


def _is_storable(value: object) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**63  # as Spark's literals


def _is_member(value: object, members: type[enum.Enum]) -> bool:
    return any(type(value) is type(each.value) and value == each.value for each in members)


_SET_TYPES: Mapping[str, type] = {"string": str, "integer": int, "boolean": bool, "date": date}


@dataclass(frozen=True)
class InSet(ColumnRule):
    """The values of a column are among a few known values.

    Example: `InSet("side", {"bid", "ask"})`

    Attributes:
        values: The known values; of an enum column its members, or their values.
        nullable: Null keeps the promise.
    """

    values: Collection[str | int | date | enum.Enum]
    nullable: bool = field(default=False, kw_only=True)

    suffix = "in_set"

    def __post_init__(self) -> None:
        """Read the values once; a list keeps its order for people."""
        given: object = self.values
        if isinstance(given, Collection) and not isinstance(given, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            plain = [value.value if isinstance(value, enum.Enum) else value for value in self.values]
            if isinstance(given, set | frozenset):  # its order differs between processes
                plain.sort(key=str)
            object.__setattr__(self, "values", tuple(plain))

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        super().check(columns)
        kind = self.require_kind(columns, (*_SET_TYPES, "enum"))
        if not isinstance(self.values, tuple) or not self.values:
            raise self.error("values", self.values, "is not a set of values", "for example {'bid', 'ask'}")
        members = columns[self.column].type.python
        wanted = _SET_TYPES.get(kind.value)
        for value in self.values:
            problem = f"is not a value of a column of type {kind.value}"
            if wanted is not None and not (type(value) is wanted and _is_storable(value)):
                raise self.error("values", value, problem, f"values of {wanted.__name__}")
            if members is not None and not _is_member(value, members):
                raise self.error("values", value, problem, f"members of {members.__name__}")

    @override
    def accepts(self, value: object) -> bool:
        """See `ColumnRule.accepts`."""
        if isinstance(value, enum.Enum):
            value = value.value
        return value in self.values

    @override
    def _default_sentence(self) -> str:
        or_null = " or null" if self.nullable else ""
        return f"{self.column} is one of {', '.join(map(str, self.values))}{or_null}."


_PARTS = re.compile(
    r"""\\(?:[0-7]{3}|.)          # an escape
    |\(\?(?:[ims]*[aLutx]|[P#(])  # flags, named groups, comments, conditions
    |\{(?!\d{1,9}(?:,\d{0,9})?\})  # braces that are no number of times, or one too large for Java
    |\[(?=\^?\]?(?:\\.|[^\\\[\]])*\[)  # sets within sets
    """,
    re.DOTALL | re.VERBOSE,
)
_ALIKE = re.compile(r"\\[^0bBUv]", re.DOTALL)
"""Escapes that Python and Java read alike."""


@dataclass(frozen=True)
class Matches(ColumnRule):
    r"""The whole text of a column matches a regular expression.

    Only syntax that Python and Java read alike; `\d`, `\w` and `\s` are ASCII, and only `\n` ends a line.

    Example: `Matches("price", r"\d+(\.\d+)?")`

    Attributes:
        pattern: The expression.
        nullable: Null keeps the promise.
    """

    pattern: str
    nullable: bool = field(default=False, kw_only=True)

    suffix = "matches"

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        super().check(columns)
        self.require_kind(columns, ("string", "enum"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a set within a set, which Java reads otherwise
                re.compile(self.pattern, re.ASCII)
        except (re.error, TypeError, ValueError, OverflowError, FutureWarning, DeprecationWarning) as error:
            problem = f"is not a regular expression: {error}"
            raise self.error("pattern", self.pattern, problem, r"for example r'\d+\.\d+'") from error
        other = [part[0] for part in _PARTS.finditer(self.pattern) if not _ALIKE.fullmatch(part[0])]
        if other:
            problem = f"has {other[0]}, which Java reads otherwise"
            instead = r"leave it out; as a character: \{, \[, \x00"
            raise self.error("pattern", self.pattern, problem, instead)

    @override
    def accepts(self, value: object) -> bool:
        """See `ColumnRule.accepts`."""
        if isinstance(value, enum.Enum):
            value = value.value
        # ASCII, as the checks of the table in Java read the classes.
        return isinstance(value, str) and re.fullmatch(self.pattern, value, re.ASCII) is not None

    @override
    def _default_sentence(self) -> str:
        or_null = " or is null" if self.nullable else ""
        return f"{self.column} matches {self.pattern}{or_null}."


@dataclass(frozen=True)
class Unique(Rule):
    """No two rows of a message, of a session or of the table have the same values in some columns; nulls are equal.

    An incremental check of a session or of the table does not see the rows of earlier increments: `lockstep check
    --full` does.

    Example: `Unique(("side", "price"))`

    Attributes:
        columns: The columns.
        scope: The rows that are compared.
    """

    columns: Sequence[str]
    scope: Scope = field(default=Scope.MESSAGE, kw_only=True)

    def __post_init__(self) -> None:
        """One column may be given by its name."""
        columns = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
        object.__setattr__(self, "columns", columns)

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        for name in self.columns:
            _require_comparable(self, "columns", name, columns)
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise self.error("columns", self.columns, "names none, or one twice", "for example ('side', 'price')")
        if not isinstance(self.scope, Scope):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            raise self.error("scope", self.scope, "is not of type Scope", "Scope.MESSAGE")
        super().check(columns)

    @override
    def _default_id(self) -> str:
        return f"{'_'.join(self.columns)}_unique".lower()

    @override
    def _default_sentence(self) -> str:
        return f"No two rows of a {self.scope.value} have the same {', '.join(self.columns)}."


@dataclass(frozen=True)
class References(Rule):
    """Each value of a column is a key of another Delta table (a foreign key), as that table is when it is checked.

    Example: `References("unit", "reference/units")`

    Attributes:
        column: The column of the row type.
        table: Folder of the other table. A relative path is below the table root, as in `Lookup`.
        key: Its column; by default of the same name. It is of the same type.
        nullable: Null keeps the promise.
    """

    column: str
    table: str
    key: str = field(default="", kw_only=True)
    nullable: bool = field(default=False, kw_only=True)

    @property
    def key_column(self) -> str:
        """The column of the other table."""
        return self.key or self.column

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        _require_comparable(self, "column", self.column, columns)
        if (refused := find_path_problem(self.table)) is not None:
            raise self.error("table", self.table, *refused)
        super().check(columns)

    @override
    def _default_id(self) -> str:
        return f"{self.column}_references".lower()

    @override
    def _default_sentence(self) -> str:
        return f"Each {self.column} is a {self.key_column} of the table {self.table}."


@dataclass(frozen=True)
class Predicate(Rule):
    """A condition in Spark SQL that each row fulfils; it may use all columns of the table.

    Example: `Predicate("low <= high", id="low_is_lowest")`

    Attributes:
        condition: For example "quantity is null or cast(quantity as double) > 0".
    """

    condition: str

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        given: object = self.condition
        if not isinstance(given, str) or not given.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
            raise self.error("condition", self.condition, "is not a condition", "for example 'price > 0'")
        if not self.id:
            raise self.error("id", self.id, "is missing", "name the condition: id='spread_is_positive'")
        super().check(columns)

    @override
    def _default_id(self) -> str:
        return ""

    @override
    def _default_sentence(self) -> str:
        return f"Of each row is true: {self.condition}"


@dataclass(frozen=True)
class Expectation(Rule):
    """An expectation of Great Expectations, on the rows of the increment; it costs separate Spark jobs.

    Example: `Expectation("expect_column_values_to_not_be_null", {"column": "price"})`

    Attributes:
        type: For example "expect_column_mean_to_be_between".
        arguments: For example {"column": "price", "min_value": 1}.
    """

    type: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        """Order the sets: in another process they have another order, which would be another rule."""
        given: object = self.arguments
        if isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            ordered = dict[str, Any]()
            for name, value in self.arguments.items():
                ordered[name] = _sort(value) if _is_set(name, value) else value
            object.__setattr__(self, "arguments", ordered)

    @classmethod
    def from_gx(cls, expectation: Any, *, id: str = "", severity: Severity = Severity.WARNING) -> Self:  # noqa: A002  # the field
        """The rule of an expectation of Great Expectations.

        Args:
            expectation: For example `ExpectColumnMeanToBeBetween(column="price", min_value=1)`.
            id: See `Rule.id`.
            severity: See `Rule.severity`; that of the expectation has no effect.

        Raises:
            DeclarationError: It is not an expectation, but for example its class.
        """
        configuration = getattr(expectation, "configuration", None)
        if not hasattr(configuration, "to_json_dict"):
            instead = 'for example ExpectColumnMeanToBeBetween(column="price", min_value=1)'
            raise DeclarationError("Expectation.from_gx", expectation, "is not an expectation", instead)
        fields = cast("Any", configuration).to_json_dict()
        return cls(fields["type"], fields["kwargs"], id=id, severity=severity)

    @override
    def check(self, columns: Mapping[str, Column]) -> None:
        """See `Rule.check`."""
        given: object = self.type
        if not isinstance(given, str) or not re.fullmatch(r"expect_[a-z0-9_]+", given):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
            instead = "'expect_column_mean_to_be_between'"
            raise self.error("type", self.type, "is not the name of an expectation", instead)
        if "{batch}" in str(self.arguments):
            raise self.error("arguments", "{batch}", "is one view for all checks of a session", "use Predicate")
        for named in self._find_columns():
            if not named.startswith("_"):
                _require_column(self, "arguments", named, columns)
        super().check(columns)

    def _find_columns(self) -> Iterator[str]:
        """The columns that the arguments name: of one, a pair, or several."""
        columns = [self.arguments.get(name) for name in ("column", "column_A", "column_B")]
        listed = self.arguments.get("column_list")
        if isinstance(listed, (list, tuple)):
            columns += cast("Sequence[object]", listed)
        for column in columns:
            if isinstance(column, str):
                yield column

    @override
    def _default_id(self) -> str:
        column = self.arguments.get("column")
        if column:
            return f"{column}_{self.type}".lower()
        return self.type

    @override
    def _default_sentence(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.type}({arguments})"


def _is_set(name: str, value: object) -> bool:
    """Whether an argument is a set: by its type, or by its name, as `from_gx` passes only lists."""
    return isinstance(value, set | frozenset) or (isinstance(value, list | tuple) and name.endswith("_set"))


def _sort(values: object) -> list[object]:
    return sorted(cast("Iterable[object]", values), key=repr)


def list_violated(rules: Sequence[Rule], row: msgspec.Struct, *, removed: str = "") -> list[str]:
    """List the ids of the rules that a row violates, for example in `Delivery.where`.

    Args:
        rules: Rules about one column of one row: `NotNull`, `InRange`, `InSet`, `Matches`.
        row: A row of the stream.
        removed: The column that is None exactly in the row of a removed key, which violates no rule; empty for none.

    Raises:
        DeclarationError: A rule needs more than one row, or Spark.
    """
    violated = list[str]()
    for rule in rules:
        if not isinstance(rule, ColumnRule):
            right = "rules about one column of one row: NotNull, InRange, InSet, Matches"
            raise DeclarationError("list_violated.rules", rule.name, "is not judged by one row", right)
        if not InlineRule(rule, removed or None).is_kept_by(row):
            violated.append(rule.name)
    return violated


def check_rules(rules: Sequence[Rule], row_type: type[msgspec.Struct]) -> None:
    """Check the rules of a stream.

    Raises:
        DeclarationError: Names the field, the value and a valid alternative.
    """
    from lockstep.model.table_schema import make_row_columns  # loads pyarrow, which `import lockstep` does not

    columns: dict[str, Column] = {}
    if rules:
        columns = {column.name: column for column in make_row_columns(row_type)}
    for rule in rules:
        if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            raise DeclarationError("Stream.rules", rule, "is not a rule", "for example NotNull('price')")
        rule.check(columns)
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise DeclarationError("Stream.rules", name, "is the id of two rules", "rename one: id='...'")


class RuleViolated(Violation):
    """A row violates a rule that quarantines its message, or halts the stream.

    Attributes:
        what: The rule's id.
        expected: Its promise.
        found: The column and its value.
        halts: The stream halts, even if its class tolerates violations.
    """

    def __init__(self, expected: object, found: object, what: str, *, halts: bool) -> None:
        super().__init__(expected, found, what)
        self.halts = halts


@dataclass(frozen=True)
class InlineRule:
    """A rule that is judged on each row before it is committed.

    Attributes:
        rule: The rule.
        removed: The column that is null exactly in the row of a removed key; such a row has no values to judge.
    """

    rule: ColumnRule
    removed: str | None = None

    def is_kept_by(self, row: msgspec.Struct) -> bool:
        """Whether a row keeps the rule."""
        is_removal = self.removed is not None and getattr(row, self.removed) is None
        return is_removal or self.rule.is_kept_by(row)


def find_inline_rules(rules: Sequence[Rule], removed: str | None) -> tuple[InlineRule, ...]:
    """The rules that are judged on each row before it is committed.

    Args:
        rules: The rules of a stream.
        removed: `Transform.removal_column` of its fold.
    """
    return tuple(InlineRule(rule, removed) for rule in rules if isinstance(rule, ColumnRule) and rule.is_inline)


RowsHook = Callable[..., Iterable["msgspec.Struct"]]
"""A method of a transform that emits rows."""


def check_rows(rules: Sequence[InlineRule], hook: RowsHook) -> RowsHook:
    """A hook that raises if a row violates an inline rule; the hook itself without such rules."""
    if rules:
        return lambda *arguments: _require_kept(rules, hook(*arguments))
    return hook


def check_first_rows(rules: Sequence[InlineRule], on_snapshot: Callable[..., object]) -> Callable[..., object]:
    """The same for `on_snapshot`, which returns rows with a state."""

    def checked(*arguments: object) -> object:
        state = on_snapshot(*arguments)
        if not isinstance(state, InitialState):
            return state
        first = cast("InitialState[object, msgspec.Struct]", state)
        return replace(first, rows=_require_kept(rules, first.rows))

    return checked if rules else on_snapshot


def _require_kept(rules: Sequence[InlineRule], rows: Iterable[msgspec.Struct]) -> Iterator[msgspec.Struct]:
    """The rows, one by one.

    Raises:
        RuleViolated: A row violates a rule.
    """
    for row in rows:
        for inline in rules:
            if not inline.is_kept_by(row):
                rule = inline.rule
                value = f"{rule.column} = {getattr(row, rule.column)!r}"
                halts = rule.on_violation is OnViolation.FAIL
                raise RuleViolated(rule.promise.removesuffix("."), value, rule.name, halts=halts)
        yield row
