"""Tables without a declaration are found by their folders, and the contents of other folders are ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lockstep.control.heartbeat import Heartbeat, WriterState
from lockstep.features.history.shadow import read_shadows
from lockstep.operations.inspect.streams import UnknownStream, find_stream
from lockstep.operations.inspect.undeclared import find_undeclared_tables
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

PROBLEM = "there is a table, and no declaration of its stream"
STEP = "declare meters in assets/ again (a file that was left out may declare it)"


def test_a_table_without_a_declaration_is_named_with_its_writer(tmp_path: Path) -> None:
    for name in ("meters", "readings"):
        ProtocolRun(folders_in(tmp_path, name)).claim()
    with Heartbeat(folders_in(tmp_path, "meters").control, 1):
        (found,) = find_undeclared_tables({"readings"}, tmp_path)
        assert (found.name, found.epoch, found.writer, found.is_live) == ("meters", 1, WriterState.WRITING, True)
        assert found.problem == f"{PROBLEM}; its writer of epoch 1 is alive"
        assert found.next_step == f"{STEP}, or end it: lockstep stop meters"
    (ended,) = find_undeclared_tables({"readings"}, tmp_path)
    assert (ended.writer, ended.problem) == (WriterState.ENDED, f"{PROBLEM}; it has no living writer")


def test_what_is_no_table_of_a_stream_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "readme").write_text("a file")
    (tmp_path / "empty").mkdir()
    write_deltalake(tmp_path / "foreign" / "table", pa.table({"number": [1]}))
    ProtocolRun(folders_in(tmp_path, "readings")).claim()
    (tmp_path / "readings").rename(tmp_path / "Not-a-name")
    assert find_undeclared_tables((), tmp_path) == ()
    assert find_undeclared_tables((), tmp_path / "none") == ()


def test_an_unknown_name_is_told_that_a_table_has_it(tmp_path: Path) -> None:
    ProtocolRun(folders_in(tmp_path, "meters")).claim()
    with pytest.raises(UnknownStream) as unknown:
        find_stream("meters", {}, tmp_path)
    table = f"{PROBLEM}; it has no living writer"
    assert unknown.value.problem == f"no stream 'meters' in assets/, but {table}"
    assert unknown.value.next_step.startswith(f"{STEP}, or move its folder out")
    with pytest.raises(UnknownStream, match=r"no stream '../meters' in assets/\n"):
        find_stream("../meters", {}, tmp_path / "below")


def test_tables_of_somebody_else_and_damaged_ones_hide_no_shadow(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "foreign" / "table", pa.table({"number": [1]}))
    damaged = tmp_path / "damaged" / "table" / "_delta_log"
    damaged.mkdir(parents=True)
    (damaged / f"{0:020}.json").write_text("{no json")
    ProtocolRun(folders_in(tmp_path, "readings")).claim()
    found = read_shadows({"readings"}, tmp_path)
    assert (found.shadows, sorted(found.unread)) == ((), ["damaged", "foreign"])
    assert "carries no readable head" in found.unread["foreign"]
    assert "is empty or cut" in found.unread["damaged"]
    assert find_undeclared_tables({"readings"}, tmp_path) == ()
