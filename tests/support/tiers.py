"""The tiers of a parametrized test: some cases run for each change, all cases in the slow tier."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from _pytest.mark.structures import ParameterSet


def first_usual(count: int, cases: Collection[object]) -> list[object]:
    """Return the cases with all but the first `count` marked as slow.

    Args:
        count: Number of usual cases: the first that are not slow already.
        cases: All cases, a tuple for several names.
    """
    usual = [case for case in cases if not _is_slow(case)]
    slow = [case for case in cases if _is_slow(case)]
    return [*usual[:count], *map(_make_slow, usual[count:]), *slow]


def keep_usual(usual: Collection[object], cases: Collection[object]) -> list[object]:
    """Return the cases with all but those in `usual` marked as slow.

    Args:
        usual: The usual cases.
        cases: All cases, a tuple for several names.
    """
    assert set(usual) <= set(cases), f"no cases: {set(usual) - set(cases)}"
    return [case if case in usual else _make_slow(case) for case in cases]


def _is_slow(case: object) -> bool:
    return isinstance(case, ParameterSet) and any(mark.name == "slow" for mark in case.marks)


def _make_slow(case: object) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
