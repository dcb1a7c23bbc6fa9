"""Forgery of stored tables: sizes, counts and heads agree with the forged files.

It shares no code with the product or the proof.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.plain_reader import Action, named_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Forged:
    """A copy of a stream's folder.

    Attributes:
        folder: Holds `table`, `ledger`, `quarantine` and `state`.
    """

    folder: Path

    @classmethod
    def copy(cls, original: Path, folder: Path) -> Forged:
        """Copy a stream; log checkpoints are left out, so that the entries alone count."""
        shutil.copytree(original, folder)
        for path in [*folder.rglob("*.checkpoint.parquet"), *folder.rglob("_last_checkpoint")]:
            path.unlink()
        _unseal(folder)
        return cls(folder)

    def files(self, table: str) -> list[str]:
        """Return the live files of a table, in the order of its log."""
        return named_files(self.folder / table)

    def rows(self, table: str, file: str) -> Rows:
        """Return the rows of a file."""
        return pq.ParquetFile(self.folder / table / file).read().to_pylist()

    def all_rows(self, table: str) -> list[tuple[str, int, dict[str, Any]]]:
        """Return every row of a table with its file and its place in the file."""
        return [(file, at, row) for file in self.files(table) for at, row in enumerate(self.rows(table, file))]

    def rewrite(self, table: str, file: str, rows: Rows) -> None:
        """Write other rows into a file, and state its new size and row count in every log and head."""
        self.replace(table, file, pa.Table.from_pylist(rows, pq.read_schema(self.folder / table / file)))

    def replace(self, table: str, file: str, rows: pa.Table) -> None:
        """Rewrite a file with rows that may have other columns."""
        path = self.folder / table / file
        pq.write_table(rows, path)
        self._tell(table, file, path.stat().st_size, len(rows))

    def reshape(self, file: str, change: Callable[[pa.Table], pa.Table]) -> None:
        """Change the columns of a data file."""
        self.replace("table", file, change(pq.ParquetFile(self.folder / "table" / file).read()))

    def move(self, file: str, hour: str) -> None:
        """State another hour for a data file."""

        def moved(actions: list[Action]) -> list[Action]:
            for action in actions:
                if action.get("add", {}).get("path") == file:
                    action["add"]["partitionValues"] = {"commit_hour": hour}
            return actions

        self._entries("table", moved)

    def change(self, table: str, file: str, at: int, **values: object) -> None:
        """Change a row."""
        rows = self.rows(table, file)
        rows[at] |= values
        self.rewrite(table, file, rows)

    def forget(self, table: str, file: str) -> None:
        """Remove a file from a table's log."""
        self._entries(table, lambda actions: [a for a in actions if a.get("add", {}).get("path") != file])

    def name_copy(self, table: str, file: str) -> None:
        """Add a copy of a file to a table's log."""
        copy = f"{Path(file).parent}/copy-{uuid.uuid4().hex}.parquet".removeprefix("./")
        shutil.copy(self.folder / table / file, self.folder / table / copy)

        def doubled(actions: list[Action]) -> list[Action]:
            found = [a["add"] for a in actions if a.get("add", {}).get("path") == file]
            return [*actions, *({"add": add | {"path": copy}} for add in found)]

        self._entries(table, doubled)

    def state_statistics(self, file: str, part: str, name: str, value: object) -> None:
        """State another statistic for a column of a data file."""

        def stated(actions: list[Action]) -> list[Action]:
            for action in actions:
                if action.get("add", {}).get("path") == file:
                    statistics = json.loads(action["add"]["stats"])
                    statistics[part][name] = value
                    action["add"]["stats"] = json.dumps(statistics)
            return actions

        self._entries("table", stated)

    def state_in_head(self, **values: object) -> None:
        """State other values in the newest head."""
        newest = max((self.folder / "table" / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for line in newest.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                head = json.loads(action["commitInfo"]["lockstep.head"]) | values
                action["commitInfo"]["lockstep.head"] = json.dumps(head)
        newest.write_text("\n".join(map(json.dumps, actions)))

    def state_files(self) -> list[Path]:
        """Return the durable state files."""
        return sorted((self.folder / "state").glob("*.state"))

    def _tell(self, table: str, file: str, size: int, rows: int) -> None:
        def told(actions: list[Action]) -> list[Action]:
            for action in actions:
                if action.get("add", {}).get("path") == file:
                    action["add"] |= {"size": size, "stats": json.dumps({"numRecords": rows})}
            return actions

        self._entries(table, told)
        if table != "table":
            self._entries("table", lambda actions: [self._head_told(a, file, size, rows) for a in actions])

    def _head_told(self, action: Action, file: str, size: int, rows: int) -> Action:
        text = action.get("commitInfo", {}).get("lockstep.head")
        if text is None or file not in text:
            return action
        head = json.loads(text)
        named: Sequence[Any] = [head.get("ledger"), *_side(head, "quarantine"), *_side(head, "late")]
        for side in named:
            if side is not None and side["path"] == file:
                side |= {"size": size, "rows": rows}
        action["commitInfo"]["lockstep.head"] = json.dumps(head)
        return action

    def _entries(self, table: str, change: Callable[[list[Action]], list[Action]]) -> None:
        for path in sorted((self.folder / table / "_delta_log").glob("*.json")):
            before = path.read_text()
            after = "\n".join(map(json.dumps, change([json.loads(line) for line in before.splitlines()])))
            if after != before:
                path.write_text(after)


def _unseal(folder: Path) -> None:
    """Remove the checksums from the names of ledger files: a forgery is not a disk error."""
    sealed = re.compile(r"(-[0-9a-f]{32})-[0-9a-f]{8}\.parquet")
    for entry in folder.rglob("_delta_log/*.json"):
        entry.write_text(sealed.sub(r"\1.parquet", entry.read_text()))
    for path in (folder / "ledger").glob("*.parquet"):
        path.rename(path.with_name(sealed.sub(r"\1.parquet", path.name)))


def _side(head: dict[str, Any], table: str) -> list[Any]:
    return list((head.get(table) or {}).get("files", []))
