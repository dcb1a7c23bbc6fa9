"""Declarations are shown as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lockstep import AvailableNow, Every, FileSize, FuzzyWindow, Halt, Linked, Once, Sequence, Strict, Suspend
from lockstep.declare.stream import format_source
from lockstep.integrity.base import OnGrowth


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (Strict(evidence=Linked()), "Strict(evidence=Linked())"),
        (Strict(evidence=Linked(), on_violation=Halt()), "Strict(evidence=Linked())"),
        (
            Strict(evidence=Sequence(wraps_at=256), on_violation=Suspend(accept_loss=True)),
            "Strict(on_violation=Suspend(accept_loss=True), evidence=Sequence(wraps_at=256))",
        ),
        (
            Strict(evidence=Linked(), on_growth=OnGrowth.RESTART_SESSIONS),
            "Strict(evidence=Linked(), on_growth=OnGrowth.RESTART_SESSIONS)",
        ),
        (Every(), "Every()"),
        (Every(seconds=0.5), "Every(seconds=0.5)"),
        (AvailableNow(), "AvailableNow()"),
        (FileSize("128 MB"), 'FileSize(target="128 MB")'),
        (FileSize("1 GB", at_most=timedelta(seconds=90)), 'FileSize(target="1 GB", at_most=timedelta(seconds=90))'),
        (timedelta(), "timedelta(seconds=0)"),
        (timedelta(hours=36), "timedelta(hours=36)"),
        (timedelta(days=2), "timedelta(days=2)"),
        (len, "len"),
    ],
)
def test_only_what_differs_from_the_default_is_written(declared: object, text: str) -> None:
    assert format_source(declared) == text


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (Every(), "Every(seconds=5)"),
        (FileSize("128 MB"), 'FileSize(target="128 MB", at_most=timedelta(hours=1))'),
    ],
)
def test_defaults_are_written_where_they_are_wanted(declared: object, text: str) -> None:
    assert format_source(declared, with_defaults=True) == text


def test_no_class_shows_how_python_holds_it() -> None:
    for each in (Strict(evidence=Linked()), Once(keep_ids=100), FuzzyWindow(lateness=timedelta(days=1))):
        assert "<" not in format_source(each, with_defaults=True)
