"""Compaction of a real table: fewer files with the same rows, ordered and proven."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lockstep.errors import NotCommitted
from lockstep.features.compaction import rewrite
from lockstep.features.compaction.commit_kinds import COMPACTION
from lockstep.features.compaction.rewrite import RewriteTask, prove_file, sort_in_order
from lockstep.features.compaction.run import CompactionRefused, Outcome, Rewriter, compact_in_process, compact_stream
from lockstep.model.table_schema import IDENTITY
from lockstep.storage import LocalStorage, NotWritten
from lockstep.table import delta_log
from lockstep.table.live_files import COMPACTED_PREFIX
from lockstep.table.row_digest import PROOF
from tests.support.stream_table import (
    HOUR,
    NEXT_HOUR,
    StreamTable,
    files_on_disk,
    identities,
    live_files,
    read_file,
    stored_rows,
)

A0 = ("a", 0)
A1 = ("a", 1)
B0 = ("b", 0)


@pytest.fixture
def filled(table: StreamTable) -> StreamTable:
    """An hour of five batches, two files each; partitions start late, pause, and move between files."""
    table.batch({A0: 40, B0: 30}, {A1: 20})
    table.batch({A0: 5, B0: 1}, {A1: 7})
    table.batch({B0: 12}, {A0: 9, A1: 3})
    table.batch({A0: 2}, {A1: 1, B0: 30})
    table.batch({A0: 33, B0: 2}, {A1: 6})
    return table


def compact(table: StreamTable, **arguments: Any) -> Any:
    return compact_stream(table.folders, **arguments)


def test_many_files_of_a_closed_hour_become_one_and_rows_stay_equal(filled: StreamTable) -> None:
    filled.close()
    before = stored_rows(filled.folders)
    result = compact(filled)
    (path,) = live_files(filled.folders)
    assert path.startswith(f"commit_hour={HOUR}/{COMPACTED_PREFIX}-")
    assert before == stored_rows(filled.folders)
    assert (
        result.bins,
        result.bins_lost,
        result.hours,
        result.files_before,
        result.files_after,
    ) == (1, 0, (HOUR,), 10, 1)
    assert len(before) == result.rows


def test_a_compacted_file_has_the_schema_of_its_inputs(filled: StreamTable) -> None:
    """Texts that were processed as dictionaries are stored as texts."""
    filled.close()
    (before, *_) = live_files(filled.folders)
    schema = pq.read_schema(filled.folders.table / before)
    compact(filled)
    (after,) = live_files(filled.folders)
    assert pq.read_schema(filled.folders.table / after).equals(schema, check_metadata=True)


def test_rows_lie_in_the_order_of_their_identity(filled: StreamTable) -> None:
    filled.close()
    compact(filled)
    (path,) = live_files(filled.folders)
    places = identities(read_file(filled.folders, path))
    assert sorted(set(places)) == places


def test_rows_lie_in_order_over_small_runs_and_row_groups(filled: StreamTable) -> None:
    def small(tasks: Sequence[RewriteTask]) -> Sequence[Outcome]:
        return local.rewrite([msgspec.structs.replace(task, run_bytes=1, group_rows=7) for task in tasks])

    local = compact_in_process()
    filled.close()
    before = stored_rows(filled.folders)
    compact(filled, rewriter=Rewriter(small))
    (path,) = live_files(filled.folders)
    places = identities(read_file(filled.folders, path))
    assert sorted(set(places)) == places
    assert before == stored_rows(filled.folders)


def test_files_of_one_hour_follow_each_other_when_the_hour_is_larger_than_a_file(filled: StreamTable) -> None:
    filled.close()
    before = stored_rows(filled.folders)
    sizes = pa.table(DeltaTable(filled.folders.table).get_add_actions()).column("size_bytes")
    result = compact(filled, target_bytes=pc.sum(sizes).as_py() // 2)
    parts = sorted(identities(read_file(filled.folders, path)) for path in live_files(filled.folders))
    assert result.bins == len(parts) > 1
    for partition in (A0, A1, B0):
        held = [[place for place in part if place[:2] == partition] for part in parts]
        held.sort()
        joined = [place for part in held for place in part]
        assert sorted(joined) == joined
    assert before == stored_rows(filled.folders)


def test_a_second_compaction_does_nothing(filled: StreamTable) -> None:
    filled.close()
    compact(filled)
    version = filled.output.base().version
    files = live_files(filled.folders)
    again = compact(filled)
    assert (again.bins, again.files_before, again.rows) == (0, 0, 0)
    assert (version, files) == (filled.output.base().version, live_files(filled.folders))


def test_an_open_hour_is_left_alone(filled: StreamTable) -> None:
    files = live_files(filled.folders)
    assert compact(filled).bins == 0
    assert files == live_files(filled.folders)


def test_a_later_batch_closes_the_hour_before(filled: StreamTable) -> None:
    filled.batch({A0: 4}, {A1: 4}, hour=NEXT_HOUR)
    before = stored_rows(filled.folders)
    result = compact(filled)
    assert result.hours == (HOUR,)
    assert before == stored_rows(filled.folders)
    assert [sum(hour in path for path in live_files(filled.folders)) for hour in (HOUR, NEXT_HOUR)] == [1, 2]


def test_partition_values_are_kept(filled: StreamTable) -> None:
    filled.batch({A0: 4}, {A1: 4}, hour=NEXT_HOUR)
    filled.close(NEXT_HOUR)
    counts = rows_by_hour(filled)
    assert compact(filled).hours == (HOUR, NEXT_HOUR)
    assert counts == rows_by_hour(filled)


def rows_by_hour(table: StreamTable) -> list[tuple[str, int]]:
    rows = DeltaTable(table.folders.table).to_pyarrow_table(columns=["commit_hour"])
    counted = rows.group_by("commit_hour").aggregate([([], "count_all")])
    return sorted(zip(*(counted.column(i).to_pylist() for i in range(2)), strict=True))


def test_statistics_let_a_filter_find_every_row(filled: StreamTable) -> None:
    filled.close()
    compact(filled)
    everything = DeltaTable(filled.folders.table).to_pyarrow_table()
    dataset = DeltaTable(filled.folders.table).to_pyarrow_dataset()
    for name in ("number", "value", "text", "at", "day", "price", *IDENTITY, "_sequence"):
        for value in set(everything.column(name).to_pylist()[:40]) - {None}:
            wanted = ds.field(name) == pa.scalar(value, everything.schema.field(name).type)
            assert everything.filter(wanted).num_rows == dataset.to_table(filter=wanted).num_rows > 0


def test_statistics_of_the_compacted_file_span_all_rows(filled: StreamTable) -> None:
    filled.close()
    compact(filled)
    everything = DeltaTable(filled.folders.table).to_pyarrow_table()
    (action,) = pa.table(DeltaTable(filled.folders.table).get_add_actions(flatten=True)).to_pylist()
    assert everything.num_rows == action["num_records"]
    for name in ("number", "value", "_partition", "_emit_offset"):
        least, greatest = (pc.min_max(everything.column(name))[end].as_py() for end in ("min", "max"))
        assert (least, greatest) == (action[f"min.{name}"], action[f"max.{name}"])
        assert everything.column(name).null_count == action[f"null_count.{name}"]


def test_the_commit_carries_its_proof_and_changes_no_data(filled: StreamTable) -> None:
    filled.close()
    before = filled.output.base()
    compact(filled)
    after = filled.output.base()
    (path,) = live_files(filled.folders)
    found = delta_log.read_entry(filled.folders.table, after.version)
    assert found is not None
    assert (before.version + 1, before.head, COMPACTION.name) == (after.version, after.head, found.kind)
    lines = delta_log.make_entry_path(filled.folders.table, after.version).read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    (info,) = (line["commitInfo"] for line in actions if "commitInfo" in line)
    proof = prove_file(filled.folders.table / path)
    assert json.loads(info[PROOF]) == {
        "verdict": "equal",
        "rows": proof.rows,
        "digest": f"{proof.digest:016x}",
        "partitions": 3,
        "files": 10,
        "minor": False,
    }
    changes = [line.get("add") or line.get("remove") for line in actions if "add" in line or "remove" in line]
    assert [change["dataChange"] for change in changes] == [False] * 11


def test_an_output_that_lost_rows_is_dropped_and_nothing_is_committed(
    filled: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.close()
    version = filled.output.base().version
    files = files_on_disk(filled.folders)
    monkeypatch.setattr(rewrite, "sort_in_order", lambda runs: list(sort_in_order(runs))[:-1])
    with pytest.raises(CompactionRefused, match=r"\d+ rows became \d+") as refused:
        compact(filled)
    assert refused.value.hours == (HOUR,)
    assert (version, files) == (filled.output.base().version, files_on_disk(filled.folders))


def test_an_output_with_a_changed_value_is_dropped(filled: StreamTable, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.close()
    files = files_on_disk(filled.folders)

    def changed(runs: Any) -> Any:
        for rows in sort_in_order(runs):
            swapped = pc.if_else(pc.equal(rows["number"], rows["number"][0]), rows["number"][-1], rows["number"])
            yield rows.set_column(0, rows.schema.field(0), swapped)

    monkeypatch.setattr(rewrite, "sort_in_order", changed)
    with pytest.raises(CompactionRefused, match=r"digest [0-9a-f]{16} became"):
        compact(filled)
    assert files == files_on_disk(filled.folders)


def test_a_compaction_on_a_full_disk_does_not_keep_it_full(
    filled: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bins are rewritten together, and the log entry of the first bin does not fit on the disk."""
    for _ in range(2):
        filled.batch({A0: 3}, {B0: 2}, hour=NEXT_HOUR)
    filled.close(NEXT_HOUR)
    before = files_on_disk(filled.folders)
    rows = stored_rows(filled.folders)

    def write_no_entry(*_: object) -> None:
        raise NotWritten(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(LocalStorage, "create_whole", write_no_entry)
        with pytest.raises(NotCommitted, match="No space left"):
            compact(filled, rewriter=Rewriter(compact_in_process().rewrite, at_once=2))
    assert files_on_disk(filled.folders) == before
    assert compact(filled).bins == 2
    assert stored_rows(filled.folders) == rows


def test_overlapping_files_are_refused_by_name_and_other_hours_are_compacted(table: StreamTable) -> None:
    table.try_batch([table.write([("a", 0, n, 0) for n in (1, 2, 5)]), table.write([("a", 0, 4, 0)])], HOUR)
    table.batch({A0: 4}, {A1: 4}, hour=NEXT_HOUR)
    table.close(NEXT_HOUR)
    with pytest.raises(CompactionRefused, match=f"hour {HOUR}: topic id a, partition 0") as refused:
        compact(table)
    assert (refused.value.hours, refused.value.result.hours) == ((HOUR,), (NEXT_HOUR,))


def test_a_missing_input_is_refused_by_name(filled: StreamTable) -> None:
    filled.close()
    path = live_files(filled.folders)[3]
    (filled.folders.table / path).unlink()
    with pytest.raises(CompactionRefused, match=f"{path} is missing"):
        compact(filled)


@pytest.mark.parametrize("until", [100, None], ids=["pages", "all"])
def test_a_damaged_input_is_refused_by_name(filled: StreamTable, until: int | None) -> None:
    """With an intact footer it is a Parquet file with damaged pages."""
    filled.close()
    path = live_files(filled.folders)[3]
    content = (filled.folders.table / path).read_bytes()
    damaged = content[:4].ljust(until or len(content), b"\0") + content[until or len(content) :]
    (filled.folders.table / path).write_bytes(damaged)
    with pytest.raises(CompactionRefused, match=f"{path} cannot be read"):
        compact(filled)


def test_batches_committed_meanwhile_are_kept(filled: StreamTable) -> None:
    filled.close()
    result = compact(filled, rewriter=meanwhile(lambda: filled.batch({A0: 9}, {B0: 2}, hour=NEXT_HOUR)))
    assert (result.bins, result.bins_lost) == (1, 0)
    assert [sum(hour in path for path in live_files(filled.folders)) for hour in (HOUR, NEXT_HOUR)] == [1, 2]
    places = [tuple(row[name] for name in IDENTITY) for row in stored_rows(filled.folders)]
    assert len(set(places)) == len(places)
    filled.batch({A0: 1}, hour=NEXT_HOUR)


def test_inputs_compacted_meanwhile_are_a_clean_loss(filled: StreamTable) -> None:
    filled.close()
    before = stored_rows(filled.folders)
    result = compact(filled, rewriter=meanwhile(lambda: compact(filled)))
    assert (result.bins, result.bins_lost, result.rows) == (0, 1, 0)
    assert before == stored_rows(filled.folders)
    compacted = [path for path in files_on_disk(filled.folders) if COMPACTED_PREFIX in path]
    assert live_files(filled.folders) == compacted


def meanwhile(act: Any) -> Rewriter:
    """Return a rewriter that calls a function before the outcome is committed."""

    def rewritten(tasks: Sequence[RewriteTask]) -> Sequence[Outcome]:
        outcomes = compact_in_process().rewrite(tasks)
        act()
        return outcomes

    return Rewriter(rewritten)
