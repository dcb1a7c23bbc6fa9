"""Reads a Delta table by its log's JSON entries and plain Parquet; it shares no code with the product.

Rows have the order of the commits, and within a file the file's order. A test thus sees the order in which rows were
written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Action = dict[str, Any]


def entries(table: Path) -> list[list[Action]]:
    """Return the actions of each log entry, from version 0 on; no version may be missing."""
    paths = sorted((table / "_delta_log").glob("*.json"))
    assert [int(path.stem) for path in paths] == list(range(len(paths)))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def named_files(table: Path) -> list[str]:
    """Return the files of the newest version, in the order in which they were added."""
    named: dict[str, None] = {}
    for action in (action for entry in entries(table) for action in entry):
        if "add" in action:
            named[unquote(action["add"]["path"])] = None
        elif "remove" in action:
            del named[unquote(action["remove"]["path"])]
    return list(named)


def read_table(table: Path) -> pa.Table:
    """Read all rows of the newest version, in the order of commits and files."""
    return pa.concat_tables(pq.ParquetFile(table / name).read() for name in named_files(table))


def rows_of(table: pa.Table, topic: str, columns: Sequence[str]) -> list[tuple[object, ...]]:
    """Return some columns of one topic's rows, in the order of the table."""
    return [
        values
        for held, *rest in zip(*(table[name].to_pylist() for name in ("_topic", *columns)), strict=True)
        if held == topic
        for values in [tuple(rest)]
    ]


def heads(table: Path) -> list[dict[str, Any]]:
    """Return the heads in the commits of an output table, from version 0 on."""
    infos = [action["commitInfo"] for entry in entries(table) for action in entry if "commitInfo" in action]
    return [json.loads(info["lockstep.head"]) for info in infos]


def named_ledger_files(table: Path) -> list[str]:
    """Return the ledger files named by the output table's commits, each once, in order."""
    named = [head["ledger"]["path"] for head in heads(table) if head.get("ledger")]
    return list(dict.fromkeys(named))


def ranges(ledger: Path, topic: str, partition: int = 0) -> list[tuple[int, int]]:
    """Return the ledger's ranges [start, until) of a partition, without empty ranges."""
    rows = [row for row in read_table(ledger).to_pylist() if (row["topic"], row["partition"]) == (topic, partition)]
    return [(row["start"], row["until"]) for row in rows if row["until"] > row["start"]]


def read_until(ledger: Path, topic: str, partition: int = 0) -> int:
    """Return the end of the ranges read of a partition, which must start at offset 0 and have no gap or overlap."""
    reached = 0
    for start, until in ranges(ledger, topic, partition):
        assert start == reached, f"{topic}/{partition}: read from {start}, stood at {reached}"
        reached = until
    return reached


def first_difference(expected: Sequence[object], actual: Sequence[object]) -> str | None:
    """Describe the first difference of two long sequences; return None if they are equal."""
    for place, (wanted, found) in enumerate(zip(expected, actual, strict=False)):
        if wanted != found:
            return f"at {place}: expected {wanted}, found {found}"
    return None if len(expected) == len(actual) else f"expected {len(expected)} rows, found {len(actual)}"
