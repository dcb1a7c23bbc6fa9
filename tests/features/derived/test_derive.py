"""A rebuild of a derived table accounts for the sessions that were erased from its sources."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.features.derived.derive import CheckpointNote, may_hold_erased
from lockstep.table.follower_positions import SourceHistory, make_unread_history


def source(
    stream: str, *, erasure: int = 0, generation: int = 1, table_id: str = "", version: int = 1
) -> SourceHistory:
    unread = make_unread_history(stream)
    read = {"table_id": table_id or stream, "generation": generation, "erasure": erasure, "version": version}
    return msgspec.structs.replace(unread, **read)


def note(*sources: SourceHistory, deletes_replaced: bool = False) -> CheckpointNote:
    return CheckpointNote(digest="d", sources=sources, deletes_replaced=deletes_replaced)


A = source("a")
B = source("b", erasure=3)


@pytest.mark.parametrize(
    ("before", "now", "is_expected"),
    [
        pytest.param(note(A, B), [A, B], False, id="no erasure since"),
        pytest.param(note(A, B), [source("a", generation=2), source("b", erasure=9)], True, id="behind a rewind"),
        pytest.param(note(A, B), [B, source("a", erasure=5)], True, id="in other sources"),
        pytest.param(note(B, A), [A], True, id="it may be of a source that is left out"),
        pytest.param(note(A), [A, B], False, id="of a source that was not read before"),
        pytest.param(note(A, B), [A, source("b", erasure=3, table_id="c")], True, id="of a table in its place"),
        pytest.param(note(A, B, deletes_replaced=True), [A, B], True, id="an earlier one is due"),
        pytest.param(None, [A, B], True, id="before the note was lost"),
        pytest.param(None, [A], False, id="no note and no erasure"),
    ],
)
def test_an_erasure_is_seen_behind_any_cause(
    before: CheckpointNote | None, now: list[SourceHistory], *, is_expected: bool
) -> None:
    assert may_hold_erased(before, now) == is_expected
