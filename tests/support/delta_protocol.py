"""The rules of Delta's protocol for the commits of a table, checked by its log and files alone.

Names in quotation marks are sections of PROTOCOL.md of delta-io/delta. A table without findings is a plain Delta table.
This module shares no code with the writer.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUIRED = {
    "add": {"path", "partitionValues", "size", "modificationTime", "dataChange"},
    "remove": {"path", "dataChange"},
    "metaData": {"id", "format", "schemaString", "partitionColumns", "configuration"},
    "protocol": {"minReaderVersion", "minWriterVersion"},
    "txn": {"appId", "version"},
    "commitInfo": set[str](),
}
AT_MOST_ONE = ("metaData", "protocol", "commitInfo")
LEGACY = ((1, 2), (1, 3), (1, 4), (2, 5), (2, 6))


class _Table:
    """The state of a table, built version by version from its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live: dict[str, dict[str, Any]] = {}
        self.sizes: dict[str, int] = {}
        self.metadata: dict[str, Any] = {}
        self.numbers: dict[str, int] = {}

    def begin(self, checkpoint: pa.Table) -> None:
        """Continue from a log checkpoint."""
        for row in checkpoint.to_pylist():
            if (add := row.get("add")) is not None:
                self.live[unquote(add["path"])] = add | {"partitionValues": dict(add["partitionValues"])}
            if (metadata := row.get("metaData")) is not None:
                self.metadata = metadata | {"configuration": dict(metadata["configuration"])}

    def apply(self, version: int, entry: bytes) -> Iterator[str]:
        actions: list[tuple[str, dict[str, Any]]] = [
            next(iter(json.loads(line).items())) for line in entry.splitlines() if line.strip()
        ]
        yield from (f"version {version}: {problem}" for problem in self._check(version, actions))

    def _check(self, version: int, actions: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
        for kind, action in actions:
            if kind not in REQUIRED:
                yield f"action {kind} needs a table feature"
            elif missing := REQUIRED[kind] - {name for name, value in action.items() if value is not None}:
                yield f"{kind} lacks {', '.join(sorted(missing))}"
        counts = Counter(kind for kind, _ in actions)
        yield from (f"{counts[kind]} actions {kind}" for kind in AT_MOST_ONE if counts[kind] > 1)
        of = {kind: [action for each, action in actions if each == kind] for kind in REQUIRED}
        if version == 0 and not (of["metaData"] and of["protocol"]):
            yield "the first version lacks metaData or protocol"
        yield from self._check_metadata(of["metaData"])
        yield from (
            f"protocol {protocol}"
            for protocol in of["protocol"]
            if (protocol["minReaderVersion"], protocol["minWriterVersion"]) not in LEGACY
        )
        yield from self._check_numbers(of["txn"])
        yield from self._check_files(of["add"], of["remove"])

    def _check_metadata(self, found: list[dict[str, Any]]) -> Iterator[str]:
        for metadata in found:
            if self.metadata and metadata["id"] != self.metadata["id"]:
                yield "metaData has another id"
            if self.metadata and metadata["partitionColumns"] != self.metadata["partitionColumns"]:
                yield "metaData has other partition columns"
            if metadata["format"] != {"provider": "parquet", "options": {}}:
                yield f"format {metadata['format']}"
            names = [field["name"] for field in json.loads(metadata["schemaString"])["fields"]]
            if len(names) != len(set(names)) or not set(metadata["partitionColumns"]) <= set(names):
                yield f"columns {names} with partitions {metadata['partitionColumns']}"
            self.metadata = metadata

    def _check_numbers(self, found: list[dict[str, Any]]) -> Iterator[str]:
        if len({number["appId"] for number in found}) < len(found):
            yield "two txn of one appId"
        for number in found:
            if number["version"] < self.numbers.get(number["appId"], -1):
                yield f"txn {number['appId']} goes back to {number['version']}"
            self.numbers[number["appId"]] = number["version"]

    def _check_files(self, adds: list[dict[str, Any]], removes: list[dict[str, Any]]) -> Iterator[str]:
        """See "Add File and Remove File", "Append-only Tables", "Requirements for Writers"."""
        added, removed = ({unquote(each["path"]): each for each in files} for files in (adds, removes))
        if len(added) < len(adds) or len(removed) < len(removes) or added.keys() & removed.keys():
            yield "two file actions of one path"
        is_append_only = self.metadata.get("configuration", {}).get("delta.appendOnly") == "true"
        if is_append_only and any(each["dataChange"] for each in removes):
            yield "it removes data of a table with delta.appendOnly"
        for path, each in removed.items():
            yield from self._check_removed(path, each)
        for path, each in added.items():
            yield from self._check_added(path, each)
        yield from self._check_rearranged(added, removed)
        for path in removed:
            self.live.pop(path, None)
        self.live |= added

    def _check_removed(self, path: str, remove: dict[str, Any]) -> Iterator[str]:
        held = self.live.get(path)
        if held is None:
            yield f"it removes {path}, which is not live"
        elif remove.get("extendedFileMetadata") and any(
            remove[name] != held[name] for name in ("partitionValues", "size")
        ):
            yield f"remove of {path} describes another file"

    def _check_added(self, path: str, add: dict[str, Any]) -> Iterator[str]:
        """See "Per-file Statistics", "Partition Value Serialization"."""
        if path in self.live:
            yield f"it adds {path} again"
        if self.sizes.setdefault(path, add["size"]) != add["size"]:
            yield f"{path} was overwritten"
        if add["partitionValues"].keys() != set(self.metadata["partitionColumns"]):
            yield f"{path} has partition values {add['partitionValues']}"
        rows = self._read(path)
        if rows is None:  # deleted since, because no version names it
            return
        if (self.folder / path).stat().st_size != add["size"]:
            yield f"{path} has another size than {add['size']}"
        known = {field["name"] for field in json.loads(self.metadata["schemaString"])["fields"]}
        if not set(rows.column_names) <= known:
            yield f"{path} has columns {set(rows.column_names) - known}"
        if add.get("stats"):
            yield from (f"{path}: {problem}" for problem in _check_statistics(rows, json.loads(add["stats"])))

    def _check_rearranged(self, added: dict[str, Any], removed: dict[str, Any]) -> Iterator[str]:
        """Files with `dataChange` false hold only records that files of the other kind in the version also hold."""
        still_added = [path for path, each in added.items() if not each["dataChange"]]
        still_removed = [path for path, each in removed.items() if not each["dataChange"]]
        if not (still_added or still_removed):
            return
        before = self._count(removed)
        after = self._count(added)
        if before is None or after is None:
            return
        if (lost := (self._count(still_removed) or Counter()) - after) or (
            made := (self._count(still_added) or Counter()) - before
        ):
            yield f"dataChange is false, and {lost.total() or made.total()} rows are not the same"

    def _count(self, paths: dict[str, Any] | list[str]) -> Counter[str] | None:
        """Count the rows of files, ignoring null values; return None if a file was deleted since."""
        counted = Counter[str]()
        for path in paths:
            rows = self._read(path)
            if rows is None:
                return None
            for row in rows.select(sorted(rows.column_names)).to_pylist():
                counted[repr({name: value for name, value in row.items() if value is not None})] += 1
        return counted

    def _read(self, path: str) -> pa.Table | None:
        try:
            return pq.ParquetFile(self.folder / path).read()
        except FileNotFoundError:
            return None


def _check_statistics(rows: pa.Table, statistics: dict[str, Any]) -> Iterator[str]:
    if statistics.get("numRecords") != rows.num_rows:
        yield f"numRecords {statistics.get('numRecords')} of {rows.num_rows} rows"
    for name, nulls in statistics.get("nullCount", {}).items():
        if isinstance(nulls, int) and name in rows.column_names and nulls != rows[name].null_count:
            yield f"nullCount {nulls} of {name}, not {rows[name].null_count}"
    for bound, keeps in (("minValues", pc.greater_equal), ("maxValues", pc.less_equal)):
        for name, value in statistics.get(bound, {}).items():
            column = rows[name] if name in rows.column_names else None
            if column is None or not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
                continue
            if not pc.all(keeps(column, pa.scalar(value, column.type))).as_py() and column.null_count < len(column):
                yield f"{bound} of {name} is {value}"


def find_broken_rules(folder: Path) -> list[str]:
    """List the broken rules of all versions, as far back as the log has no gap."""
    log = folder / "_delta_log"
    found = list[str]()
    versions = sorted(int(path.stem) for path in log.glob("*.json") if path.stem.isdecimal())
    first = next(at for at in versions if set(range(at, versions[-1] + 1)) <= set(versions))
    table = _Table(folder)
    if first > 0:
        made = sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))
        base = min(at for at in made if at >= first - 1)
        table.begin(pq.ParquetFile(log / f"{base:020d}.checkpoint.parquet").read())
        first = base + 1
    for version in range(first, versions[-1] + 1):
        found += table.apply(version, (log / f"{version:020d}.json").read_bytes())
    return [*found, *(f"{path} is live, and gone" for path in table.live if not (folder / path).exists())]


def make_metadata_line(properties: dict[str, str]) -> bytes:
    """Make the `metaData` action of a table without columns."""
    metadata = {
        "id": "a",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": '{"type":"struct","fields":[]}',
        "partitionColumns": [],
        "configuration": properties,
    }
    return json.dumps({"metaData": metadata}).encode()
