"""A derived table continues after appends, compaction and retention of a source, and after no other commit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.features.derived.derive import RebuildCause, find_other_history
from lockstep.table.follower_positions import SourceHistory, make_history
from tests.support.every_commit import EveryCommit
from tests.support.examples import scale_examples

KEEPING = ("batch", "quiet", "hour", "compact", "retain", "close", "floor", "savepoint", "schema", "desire")
REPLACING = {"rewind": RebuildCause.REWOUND, "promote": RebuildCause.REWOUND, "erase": RebuildCause.ERASED}


def look(made: EveryCommit) -> SourceHistory:
    return make_history(made.run.folders, made.run.output.base())


@settings(max_examples=scale_examples(40), deadline=None)
@given(
    before=st.lists(st.sampled_from(KEEPING), max_size=4),
    replacing=st.none() | st.sampled_from(sorted(REPLACING)),
    after=st.lists(st.sampled_from(KEEPING), max_size=4),
)
def test_a_change_is_found_whatever_comes_before_and_after_it(
    before: list[str], replacing: str | None, after: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        made = EveryCommit(Path(root))
        for step in ("batch", "hour", "batch"):
            made.step(step)
        noted = look(made)
        for step in (*before, *([replacing] if replacing else []), *after):
            made.step(step)
        found = find_other_history(made.run.folders.root, [noted], [look(made)])
        assert found is (REPLACING[replacing] if replacing else None)


@pytest.mark.parametrize("step", sorted(REPLACING))
def test_a_change_that_the_heads_do_not_show_is_found_by_its_kind(tmp_path: Path, step: str) -> None:
    made = EveryCommit(tmp_path)
    made.batch()
    made.batch()
    noted = look(made)
    made.step(step)
    now = msgspec.structs.replace(look(made), generation=noted.generation, erasure=noted.erasure)
    assert find_other_history(made.run.folders.root, [noted], [now]) is RebuildCause.REWOUND


def test_rows_that_others_deleted_are_found_and_a_description_is_not(tmp_path: Path) -> None:
    made = EveryCommit(tmp_path)
    made.batch()
    noted = look(made)
    table = made.run.folders.table
    DeltaTable(table).alter.set_table_description("rows")
    later = msgspec.structs.replace(noted, version=noted.version + 1)
    assert find_other_history(made.run.folders.root, [noted], [later]) is None
    DeltaTable(table).delete("number = 1")
    later = msgspec.structs.replace(noted, version=noted.version + 2)
    assert find_other_history(made.run.folders.root, [noted], [later]) is RebuildCause.REWOUND
