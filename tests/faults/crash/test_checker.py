"""The crash test's checker notices each violation that is put into a good table."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from assets.order_books import order_books
from lockstep import Limits, Topics
from tests.faults.crash.whole import assert_whole, produced
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import Action, named_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from lockstep.features.localdev.broker import Broker


@pytest.fixture(scope="module")
def good(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LocalRuns, dict[str, list[bytes]], dict[Path, bytes]]:
    """A good table, the messages of its topics, and the bytes of its files."""
    family = "checker"
    root = tmp_path_factory.mktemp("checker")
    sent = produced(broker, family, 40)
    stream = dataclasses.replace(order_books, topics=Topics(pattern=rf"{family}\..+"), limits=Limits(batch_messages=30))
    runs = LocalRuns(stream, broker.bootstrap_servers, root)
    runs.run()
    files = [path for path in (root / "tables").rglob("*") if path.is_file()]
    return runs, sent, {path: path.read_bytes() for path in files}


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """Return a function that changes the rows of the last file."""

    def seed(table: Path) -> None:
        path = table / named_files(table)[-1]
        pq.write_table(change(pq.ParquetFile(path).read()), path)

    return seed


def forgotten(table: Path) -> None:
    """Remove the files from the last commit with rows."""
    rewrite_entry(table, lambda actions: [action for action in actions if "add" not in action])


def named_twice(table: Path) -> None:
    """Add a copy of its file to the last commit with rows."""

    def doubled(actions: list[Action]) -> list[Action]:
        (add,) = (action["add"] for action in actions if "add" in action)
        (table / f"{add['path']}.copy").write_bytes((table / add["path"]).read_bytes())
        return [*actions, {"add": add | {"path": f"{add['path']}.copy"}}]

    rewrite_entry(table, doubled)


def rewrite_entry(table: Path, change: Callable[[list[Action]], list[Action]]) -> None:
    path = next(path for path in sorted((table / "_delta_log").glob("*.json"))[::-1] if '"add"' in path.read_text())
    actions = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("\n".join(map(json.dumps, actions)))


VIOLATIONS: dict[str, Callable[[Path], None]] = {
    "a row is lost": rewritten(lambda rows: rows.slice(1)),
    "a row is doubled": rewritten(lambda rows: rows.take([0, *range(rows.num_rows)])),
    "two rows are swapped": rewritten(lambda rows: rows.take([1, 0, *range(2, rows.num_rows)])),
    "a value is wrong": rewritten(
        lambda rows: rows.set_column(1, rows.field(1), rows["price"].take([1, *range(1, rows.num_rows)]))
    ),
    "a batch is lost": forgotten,
    "a batch is doubled": named_twice,
    "the ledger is a batch behind": lambda table: max((table.parent / "ledger/_delta_log").glob("*.json")).unlink(),
}


def test_a_good_table_passes(good: tuple[LocalRuns, dict[str, list[bytes]], dict[Path, bytes]]) -> None:
    runs, sent, _ = good
    assert_whole(runs.folders, sent)


@pytest.mark.parametrize("seed", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_seeded_violation_is_noticed(
    good: tuple[LocalRuns, dict[str, list[bytes]], dict[Path, bytes]], seed: Callable[[Path], None]
) -> None:
    runs, sent, files = good
    seed(runs.folders.table)
    try:
        with pytest.raises(AssertionError):
            assert_whole(runs.folders, sent)
    finally:
        for path, content in files.items():
            path.write_bytes(content)
        for path in set((runs.root / "tables").rglob("*.copy")):
            path.unlink()
