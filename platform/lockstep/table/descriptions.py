"""Changes to a table that others may make: its name, its comment, the comments of its columns, and own properties.

A catalogue or a person describes a table by a separate commit, which writes the whole `metaData` action again. Such a
commit is accepted if nothing else differs; properties of Delta or lockstep (`delta.`, `lockstep.`) are not
theirs to change. Pure.
"""

from __future__ import annotations

import msgspec

from lockstep.errors import format_some
from lockstep.model.decoding import decode_json, decode_json_lines

RESERVED = ("delta.", "lockstep.", "__")
"""Starts of names with a meaning for readers and writers; Spark's are `__`. In any case."""


class _TableMetadata(msgspec.Struct, rename="camel"):
    """The `metaData` action, without name and description."""

    id: str
    schema_string: str
    partition_columns: list[str]
    configuration: dict[str, str]
    format: dict[str, object]


class _Line(msgspec.Struct, rename="camel"):
    """One line of an entry."""

    meta_data: _TableMetadata | None = None
    commit_info: dict[str, object] | None = None


def find_reserved_changes(entry: bytes, before: bytes) -> str:
    """The changes in an entry that others may not make; empty if it only describes the table.

    Args:
        entry: Content of the entry.
        before: An entry with the newest `metaData` action before it, or that line of it.
    """
    try:
        actions = [next(iter(line)) for line in decode_json_lines(entry, dict[str, msgspec.Raw])]
        # An entry with any other action changes rows, files or the protocol.
        if sorted(actions) not in (["commitInfo", "metaData"], ["metaData"]):
            return "it changes more than the description of the table"
        earlier = _read_metadata(before)
        later = _read_metadata(entry)
    except (msgspec.DecodeError, StopIteration):
        return "it cannot be read"
    return format_some(_list_changes(earlier, later))


def _read_metadata(entry: bytes) -> _TableMetadata:
    return next(line.meta_data for line in decode_json_lines(entry, _Line) if line.meta_data is not None)


def _list_changes(held: _TableMetadata, after: _TableMetadata) -> list[str]:
    properties = _list_reserved(held.configuration, after.configuration)
    if (held.id, held.partition_columns, held.format) != (after.id, after.partition_columns, after.format):
        properties.append("id, partitions or format of the table")
    if _strip(decode_json(held.schema_string, object)) != _strip(decode_json(after.schema_string, object)):
        properties.append("columns of the table")
    return properties


def _list_reserved(held: dict[str, str], after: dict[str, str]) -> list[str]:
    changes = list[str]()
    for name in sorted(held.keys() | after.keys()):
        if held.get(name) == after.get(name) or not _is_reserved(name):
            continue
        if name in after:
            changes.append(f"{name} = {after[name]}")
        else:
            changes.append(f"{name} is unset")
    return changes


def _is_reserved(name: str) -> bool:
    return name.lower().startswith(RESERVED)


def _strip(schema: object) -> object:
    """A schema without what describes its columns."""
    if isinstance(schema, list):
        return [_strip(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    stripped = {name: _strip(value) for name, value in schema.items() if name != "metadata"}
    notes = schema.get("metadata")
    if isinstance(notes, dict):
        # Under reserved names metadata changes what a column means to readers and writers; comments do not.
        stripped["metadata"] = {name: value for name, value in notes.items() if _is_reserved(str(name))}
    return stripped
