"""The tiers of a parametrized test: some cases guard each change, and all of them are in the slow tier."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet


def first_usual(count: int, cases: Iterable[object]) -> list[object]:
    """The cases of a test, of which the first `count` are usual and the others slow.

    Args:
        count: Number of usual cases.
        cases: All of them, a tuple for several names.
    """
    return [case if number < count else _make_slow(case) for number, case in enumerate(cases)]


def _make_slow(case: object) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
