"""The list of places that can hold a session is complete, and docs/erase.md repeats it word by word."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lockstep.features.erase.ledger_redaction import REDACTED
from lockstep.features.erase.places import PLACES, ErasedPlace
from lockstep.features.quality.check import make_result_path
from lockstep.table import ledger, quarantine
from lockstep.table.layout import DerivedFolders, StreamFolders

PAGE = Path(__file__).parents[3] / "docs" / "erase.md"
WITHOUT_SESSIONS = {"incoming", "lock", "root"}
"""A stream that is only being copied here has no table to erase from; a lock is an empty file."""

WITHOUT_NAMES = {
    *("topic_id", "topic", "state_file", "lifecycle", "ending", "discarded_by"),
    *("holes", "lookups", "erased"),
}
"""Columns of the ledger with names of topics, files, tables, causes and digests only."""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.place)
def test_the_page_has_the_place(place: ErasedPlace) -> None:
    assert f"| {place.place} | {place.holds} | {place.gone} |\n" in PAGE.read_text()


def test_the_page_has_no_other_place() -> None:
    """The page's other table has two columns."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and line.count("|") == 4]
    assert len(rows) == len(PLACES) + 2


def test_every_folder_of_a_stream_and_of_a_derived_table_is_in_the_list() -> None:
    stream = StreamFolders("s", Path("/root"))
    folders = {make_result_path(stream).parent}
    for each in (stream, DerivedFolders("s", Path("/root"))):
        folders |= {path for name in dir(each) if isinstance(path := getattr(each, name), Path)}
    names = {folder.name for folder in folders} - WITHOUT_SESSIONS
    assert names == {place.folder for place in PLACES if place.folder}


def _has_text(kind: object) -> bool:
    """Return whether values of an Arrow type have text."""
    if isinstance(kind, pa.StructType):
        return any(_has_text(field.type) for field in kind)
    return _has_text(kind.value_type) if isinstance(kind, pa.ListType) else kind == pa.string()


def test_every_text_of_the_ledger_is_taken_out_or_names_no_session() -> None:
    texts = {field.name for field in ledger.SCHEMA if _has_text(field.type)}
    assert texts == REDACTED | WITHOUT_NAMES


def test_every_text_of_quarantine_and_late_table_is_hidden_or_names_no_session() -> None:
    texts = {field.name for field in quarantine.SCHEMA if _has_text(field.type)}
    assert texts == quarantine.HIDDEN | {"topic_id", "topic", "cause", "headers"}
