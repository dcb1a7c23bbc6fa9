"""The ranges of the ledger find the rows of batches in any files."""

from __future__ import annotations

import random
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from lockstep import Kind
from lockstep.delivery import RowSource
from lockstep.errors import TableError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.delivery import steps
from lockstep.features.delivery.decode import RowDecoder
from lockstep.features.delivery.steps import Step, TableSnapshot, find_readable_batch, plan_step, plan_steps, read_ends
from lockstep.model.position import TopicIdPartition
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.stream_table import open_table
from lockstep.table.row_order import RowPlace
from tests.support.kept_stream import Sent, keeping, message
from tests.support.offline_stream import Offline
from tests.support.plain_reader import named_files, read_table
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Identity = tuple[str, int, int, int]
TOPICS = ("kept.one", "kept.two", "kept.three")


def make_batches(seed: int) -> list[dict[str, list[Sent]]]:
    """Return batches of updates of some sessions in some topics; some are empty."""
    chosen = random.Random(seed)  # noqa: S311  # no secret
    sequences = dict[tuple[str, str], int]()
    batches = list[dict[str, list[Sent]]]()
    for _ in range(chosen.randint(3, 7)):
        batch = dict[str, list[Sent]]()
        for topic in chosen.sample(TOPICS, chosen.randint(1, 3)):
            sent = batch.setdefault(topic, [])
            for _ in range(chosen.randint(0, 6)):
                session = chosen.choice("abc")
                number = sequences[topic, session] = sequences.get((topic, session), 0) + 1
                kind = Kind.SNAPSHOT if number == 1 else Kind.UPDATE
                values = dict.fromkeys(chosen.sample("xyz", chosen.randint(1, 3)), number)
                sent.append((session, message(kind, number, **values)))
        batches.append(batch)
    return batches


@pytest.fixture(params=[*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 6))])
def offline(request: pytest.FixtureRequest, tmp_path: Path) -> Offline:
    """A table of random batches, one per run; `batch_of` has the batch of each row."""
    made = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    batch_of.clear()
    for batch in make_batches(request.param):
        made.run(batch)
        for identity in list_identities(made):
            batch_of.setdefault(identity, open_table(made.folders).base().head.batch)
    return made


batch_of: dict[Identity, int] = {}


def list_identities(offline: Offline) -> list[Identity]:
    table = read_table(offline.folders.table).to_pylist() if named_files(offline.folders.table) else []
    return [(row["_topic_id"], row["_partition"], row["_emit_offset"], row["_row"]) for row in table]


def read_origins(
    snapshot: TableSnapshot, decoder: RowDecoder, step: Step, after: tuple[TopicIdPartition, RowPlace] | None = None
) -> list[RowSource]:
    """Return the origins of the rows of a step."""
    origins = list[RowSource]()
    for placed in snapshot.read_rows(step, after):
        origins += decoder.decode(placed)[1]
    return origins


def read_all(offline: Offline, after: int = 0) -> Iterator[list[tuple[Identity, int]]]:
    """Return identity and batch of the rows of each step."""
    base = open_table(offline.folders).base()
    snapshot = TableSnapshot(offline.folders, base)
    decoder = RowDecoder(offline.stream.types.row)
    until = find_readable_batch(offline.folders, base.head)
    ends = read_ends(offline.folders, base.head, after)
    for step in plan_steps(offline.folders, base.head, after, until, ends):
        rows = read_origins(snapshot, decoder, step)
        assert len(rows) == step.rows
        yield [(each.identity, each.batch) for each in rows]


@pytest.mark.parametrize("rows", first_usual(2, [1, 7, 500_000]))
def test_each_row_is_read_once_with_its_batch_also_after_a_compaction(
    offline: Offline, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "STEP_ROWS", rows)
    before = list(read_all(offline))
    found = list(chain.from_iterable(before))
    assert dict(found) == batch_of
    assert len(found) == len(batch_of)
    for step in before:
        assert [identity for identity, _ in step] == sorted(identity for identity, _ in step)
    close_hour(offline.folders)
    compact_stream(offline.folders)
    assert list(read_all(offline)) == before


def test_a_read_from_any_batch_continues_there(offline: Offline) -> None:
    for after in range(max(batch_of.values()) + 1):
        found = list(chain.from_iterable(read_all(offline, after)))
        assert dict(found) == {row: batch for row, batch in batch_of.items() if batch > after}


def test_a_read_after_any_row_of_a_step_continues_there(offline: Offline) -> None:
    base = open_table(offline.folders).base()
    decoder = RowDecoder(offline.stream.types.row)
    step = plan_step(offline.folders, base.head, 0, base.head.batch, {})
    snapshot = TableSnapshot(offline.folders, base)
    every = sorted(batch_of)
    for done, row in enumerate(every):
        after = TopicIdPartition(*row[:2]), RowPlace(*row[2:])
        left = [each.identity for each in read_origins(snapshot, decoder, step, after)]
        assert left == every[done + 1 :]


def test_small_slices_and_a_small_cache_read_the_same(offline: Offline, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(read_all(offline))
    monkeypatch.setattr(steps, "SLICE_ROWS", 2)
    monkeypatch.setattr(steps, "CACHE_BYTES", 0)
    assert list(read_all(offline)) == before


class Validated(msgspec.Struct, kw_only=True):
    """The fields of the stream's row, which are keyword-only: its rows are validated."""

    name: str
    value: int
    total: int


def test_rows_of_plain_fields_are_those_that_a_validation_makes(offline: Offline) -> None:
    base = open_table(offline.folders).base()
    step = plan_step(offline.folders, base.head, 0, base.head.batch, {})
    decoder = RowDecoder(offline.stream.types.row)
    for placed in TableSnapshot(offline.folders, base).read_rows(step):
        rows, origins = decoder.decode(placed)
        validated, same = RowDecoder(Validated).decode(placed)
        assert msgspec.to_builtins(rows) == msgspec.to_builtins(validated)
        assert origins == same
        at = placed.rows.column_names.index("name")
        nulls = pa.nulls(placed.rows.num_rows, pa.string())
        with pytest.raises(TableError, match="are no Row"):
            decoder.decode(placed._replace(rows=placed.rows.set_column(at, "name", nulls)))
