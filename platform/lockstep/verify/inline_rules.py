"""The second reading of rules that quarantine or fail: by docs/quality.md, and not by the engine.

A declared rule is data, and only its data is read: column, bounds, values, pattern. A kind of rule that the user wrote
is judged by its own `accepts`, which is the user's code.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, cast

import msgspec

from lockstep.declare.rules import ColumnRule, InRange, InSet, Matches, NotNull, OnViolation, Rule
from lockstep.declare.transform import InitialState
from lockstep.errors import Violation

Hook = Callable[..., Iterable[msgspec.Struct]]
"""A method of a transform that emits rows."""


class _RuleBroken(Violation):
    """A row that the declaration forbids.

    Attributes:
        halts: The stream stops, even if its class tolerates violations.
    """

    def __init__(self, rule: str, found: object, *, halts: bool) -> None:
        super().__init__("a row that keeps the rule", found, rule)
        self.halts = halts


class RowRule(msgspec.Struct, frozen=True):
    """The meaning of a rule for one row.

    Attributes:
        name: Its id, which is the cause in quarantine.
        column: The column that it is about.
        halts: The stream stops; otherwise the message is quarantined.
        takes_null: Null keeps the rule.
        breaks: Whether a value breaks it; not called with null.
    """

    name: str
    column: str
    halts: bool
    takes_null: bool
    breaks: Callable[[Any], bool]


class InlineRules(msgspec.Struct, frozen=True):
    """The rules by which each row is judged before it is committed, in the order of the declaration.

    Attributes:
        rules: The rules.
        removed: The column that is null exactly in the row of a removed key, which has no values; None if no row is.
    """

    rules: tuple[RowRule, ...]
    removed: str | None = None

    def check(self, rows: Iterable[msgspec.Struct]) -> list[msgspec.Struct]:
        """The rows of one message; each is judged before the hook makes the next one.

        Raises:
            _RuleBroken: A row breaks a rule: the first such row, with its first broken rule.
        """
        kept: list[msgspec.Struct] = []
        for row in rows:
            for broken in self._find_broken(row):
                raise broken
            kept.append(row)
        return kept

    def _find_broken(self, row: msgspec.Struct) -> Iterator[_RuleBroken]:
        # The row of a removed key has no values that a rule could judge.
        if self.removed is not None and getattr(row, self.removed) is None:
            return
        for rule in self.rules:
            value = getattr(row, rule.column)
            is_broken = not rule.takes_null
            if value is not None:
                is_broken = rule.breaks(value)
            if is_broken:
                yield _RuleBroken(rule.name, value, halts=rule.halts)

    def guard(self, hook: Hook) -> Hook:
        """A hook whose rows are judged; the hook itself without rules."""
        if not self.rules:
            return hook
        return lambda *arguments: self.check(hook(*arguments))

    def guard_snapshot(self, on_snapshot: Callable[..., object]) -> Callable[..., object]:
        """`on_snapshot`, whose rows are judged if it returns any with the state."""

        def guarded(*arguments: object) -> object:
            made = on_snapshot(*arguments)
            if isinstance(made, InitialState):
                first = cast("InitialState[object, msgspec.Struct]", made)
                return InitialState(first.state, self.check(first.rows))
            return made

        return guarded if self.rules else on_snapshot


def read_inline_rules(rules: Sequence[Rule], removed: str | None) -> InlineRules:
    """The inline rules of a declaration.

    Args:
        rules: All rules.
        removed: See `InlineRules`.
    """
    inline = [rule for rule in rules if isinstance(rule, ColumnRule) and rule.on_violation is not OnViolation.WARN]
    return InlineRules(tuple(map(_read_rule, inline)), removed)


def _read_rule(rule: ColumnRule) -> RowRule:
    return RowRule(
        name=rule.name,
        column=rule.column,
        halts=rule.on_violation is OnViolation.FAIL,
        takes_null=rule.nullable if isinstance(rule, InRange | InSet | Matches) else rule.allows_null,
        breaks=_find_meaning(rule),
    )


def _find_meaning(rule: ColumnRule) -> Callable[[Any], bool]:
    """The values other than null that break a rule."""
    kind = type(rule)
    if kind is NotNull:
        return lambda _: False
    if kind is InRange:
        return _read_range(cast("InRange", rule))
    if kind is InSet:
        return _read_set(cast("InSet", rule))
    if kind is Matches:
        return _read_pattern(cast("Matches", rule))
    return lambda value: not rule.accepts(value)


def _read_range(rule: InRange) -> Callable[[Any], bool]:
    """Both bounds belong to the range; a value that is not a number is outside every range."""
    low: Any = rule.at_least
    high: Any = rule.at_most

    def lies_outside(value: Any) -> bool:
        if _is_no_number(value):
            return True
        return (low is not None and value < low) or (high is not None and value > high)

    return lies_outside


def _is_no_number(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, float) and math.isnan(value)


def _read_set(rule: InSet) -> Callable[[Any], bool]:
    allowed = [_as_stored(value) for value in rule.values]
    return lambda value: not any(_as_stored(value) == member for member in allowed)


def _read_pattern(rule: Matches) -> Callable[[Any], bool]:
    """The whole text, by ASCII classes, as Java reads it."""
    pattern = re.compile(rule.pattern, re.ASCII)

    def differs(value: Any) -> bool:
        text = _as_stored(value)
        return not isinstance(text, str) or pattern.fullmatch(text) is None

    return differs


def _as_stored(value: object) -> object:
    """An enum member as the column stores it."""
    return value.value if isinstance(value, enum.Enum) else value
