"""A derived table is checked fully when it is declared; its digest covers everything that decides its rows."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.declare.discovery import find_derived
from lockstep.declare.naming import NO_NAME
from lockstep.derived import Derived, OutputMode, Watermark
from lockstep.errors import DeclarationError
from tests.support.adding_stream import adding
from tests.support.derived_tables import activity, count_windows, join_sessions

if TYPE_CHECKING:
    from pathlib import Path

STREAM = adding("x")


def refusal(**changed: Any) -> str:
    with pytest.raises(DeclarationError) as refused:
        activity(STREAM, **changed)
    return str(refused.value)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"name": "Activity"},
            f"Derived.name = 'Activity': {NO_NAME}\n  next: for example 'book_activity'",
        ),
        ({"name": "adding"}, "Derived.name = 'adding': is the name of its source\n  next: another name"),
        ({"sources": ()}, "Derived.sources = (): is not a sequence of streams\n  next: for example (order_books,)"),
        ({"sources": "adding"}, "Derived.sources = 'adding': is not a sequence of streams"),
        ({"sources": ("adding",)}, "Derived.sources = 'adding': is not a Stream\n  next: for example (order_books,)"),
        ({"sources": (STREAM, STREAM)}, "Derived.sources = ['adding', 'adding']: names a stream twice"),
        ({"derive": "count"}, "Derived.derive = 'count': is not a function"),
        (
            {"derive": partial(count_windows)},
            "is not a function\n  next: put the function at the top level of a module",
        ),
        ({"derive": join_sessions}, "cannot be called with 1 DataFrames, one a source: missing a required argument"),
        ({"watermark": "_event_time"}, "Derived.watermark = '_event_time': is not a Watermark"),
        (
            {"watermark": Watermark("name")},
            "Watermark.column = 'name': is not a time column of adding\n  next: one of _event",
        ),
        ({"output_mode": "append"}, "Derived.output_mode = 'append': is not of type OutputMode"),
        ({"partition_by": "name"}, "Derived.partition_by = 'name': is not a sequence of names"),
        ({"schedule": "hourly"}, "Derived.schedule = 'hourly': is not a cron expression of five fields"),
    ],
)
def test_a_declaration_that_cannot_run_names_field_value_and_what_is_right(
    changed: dict[str, Any], expected: str
) -> None:
    assert expected in refusal(**changed)


def test_a_delay_is_a_duration() -> None:
    with pytest.raises(DeclarationError, match=r"Watermark.delay = datetime.timedelta\(days=-1\): is not a duration"):
        Watermark(delay=timedelta(days=-1))


MODULE = '''
"""A module."""

from lockstep.derived import Derived
from tests.support.adding_stream import adding


def derive(rows):
    """Rows."""
    return rows  # all of them


made = Derived(name="made", sources=(adding("x"),), derive=derive)
'''


DIGEST = "d7ca53c56eb4c142d23c29af0c6ac5cb325bcf4e0339c5e218fb0fb6c25fa0cc"
"""The digest of that module in each version of Python."""


def digest_of(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "given_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "given_module", raising=False)
    importlib.invalidate_caches()
    made: Derived = importlib.import_module("given_module").made
    monkeypatch.delitem(sys.modules, "given_module.py", raising=False)
    return made.compute_digest()


def test_the_digest_knows_code_and_options_and_no_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {
        "same": MODULE,
        "comments": MODULE.replace("all of them", "each").replace("Rows.", "Others."),
        "schedule": MODULE.replace("derive=derive)", "derive=derive, description='x', schedule='1 * * * *')"),
        "code": MODULE.replace("return rows ", "return rows.limit(1) "),
    }
    digests = {}
    for name, source in sources.items():
        (tmp_path / name).mkdir()
        digests[name] = digest_of(tmp_path / name, source, monkeypatch)
    assert digests["same"] == digests["comments"]
    assert digests["same"] != digests["code"]


def test_another_version_of_python_changes_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change would rebuild all derived tables, without the rows that retention dropped from their sources."""
    (tmp_path / "same").mkdir()
    assert digest_of(tmp_path / "same", MODULE, monkeypatch) == DIGEST


def test_options_that_decide_rows_are_in_the_digest() -> None:
    said = activity(STREAM).compute_digest()
    assert activity(STREAM, schedule="1 * * * *", description="x").compute_digest() == said
    for changed in ({"watermark": None}, {"output_mode": OutputMode.COMPLETE}, {"partition_by": ("_session",)}):
        assert activity(STREAM, **changed).compute_digest() != said


def test_derived_tables_are_found_as_streams_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "found_tables").mkdir()
    (tmp_path / "found_tables" / "made.py").write_text(MODULE)
    assert list(find_derived(tmp_path, "found_tables")) == ["made"]
    (tmp_path / "found_tables" / "second.py").write_text(MODULE)
    with pytest.raises(DeclarationError, match="'made': is the name of another derived table, too"):
        find_derived(tmp_path, "found_tables")
