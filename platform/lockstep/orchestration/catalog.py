"""What Dagster's catalog shows of a stream: columns, paths, the promise. Pure."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated, get_args, get_origin, get_type_hints

import msgspec
from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from lockstep.declare.source_form import source_form
from lockstep.table.layout import StreamFolders
from lockstep.table.schema import table_schema

if TYPE_CHECKING:
    from pathlib import Path

    from dagster._core.definitions.metadata import RawMetadataValue

    from lockstep.engine.hands import AnyStream

KINDS = {"kafka", "spark", "deltalake"}
"""Dagster shows an icon for each."""

MEANING = {
    "_topic": "Kafka topic of the source message",
    "_topic_id": "Kafka's id of this life of the topic",
    "_partition": "Partition of the source message",
    "_offset": "Offset of the source message",
    "_emit_offset": "Offset that was being worked on when the row was emitted",
    "_row": "Number of the row among those of one emit offset",
    "_session": "The unit of order inside a partition",
    "_sequence": "The producer's number of the message inside its session",
    "_event_time": "When it happened, as the message says",
    "commit_hour": "Hour of the commit, UTC; the partition column",
}
"""Of the columns that lockstep adds to a user's own."""


def table_metadata(stream: AnyStream, root: Path) -> dict[str, RawMetadataValue]:
    """Metadata of the table's asset."""
    folders = StreamFolders(stream.name, root)
    return {
        "dagster/column_schema": column_schema(stream.types.row),
        "dagster/uri": folders.table.as_uri(),  # must be plain text, or the catalog shows none
        "ledger": MetadataValue.path(folders.ledger),
        "topics": stream.topics.pattern,
        "integrity": integrity(stream),
        "promise": stream.integrity.promise(),
        "trigger": source_form(stream.trigger, with_defaults=True),
    }


def table_description(stream: AnyStream) -> str:
    """The sentence of the declaration, then what a run does."""
    return (
        f"{stream.description}\n\n"
        f"Reads every topic that matches `{stream.topics.pattern}` in order, exactly once, under "
        f"`{integrity(stream)}`: {stream.integrity.promise()}.\n\n"
        "Figures of each minute: Metadata, Plots, and Events. The table of metadata is of the newest materialization: "
        "the version that the last check looked at, or the end of a bounded run.\n\n"
        "A run goes on until it is stopped or handed over. With other assets, or with `available_now` in its "
        "configuration, it reads what is there and ends; while a never-ending run writes it leaves the table alone."
    ).strip()


def integrity(stream: AnyStream) -> str:
    """The integrity class as it is declared."""
    return source_form(stream.integrity)


def column_schema(row_type: type[msgspec.Struct]) -> TableSchema:
    """All columns of the table, the proof columns too."""
    meaning = MEANING | field_descriptions(row_type)
    return TableSchema(
        columns=[
            TableColumn(
                field.name,
                str(field.type),
                description=meaning.get(field.name),
                constraints=TableColumnConstraints(nullable=field.nullable),
            )
            for field in table_schema(row_type)
        ]
    )


def field_descriptions(row_type: type[msgspec.Struct]) -> dict[str, str]:
    """What the row type says of its fields.

    `Annotated[..., msgspec.Meta(description=...)]` counts first, then the `Attributes:` of the class's docstring.
    """
    return (
        _documented(inspect.getdoc(row_type) or "")
        | {
            name: meta.description
            for name, hint in get_type_hints(row_type, include_extras=True).items()
            for annotated in (hint, *get_args(hint))  # by itself, or in `... | None`
            if get_origin(annotated) is Annotated
            for meta in get_args(annotated)[1:]
            if isinstance(meta, msgspec.Meta) and meta.description
        }
    )


_ATTRIBUTE = re.compile(r"^ {4}(?P<name>\w+)(?: \([^)]*\))?: (?P<text>.+(?:\n {5,}\S.*)*)", re.MULTILINE)


def _documented(docstring: str) -> dict[str, str]:
    """The attributes of a docstring in Google's style; lines that are indented further go on with the one before."""
    _, _, attributes = docstring.partition("\nAttributes:\n")
    section = re.split(r"^\S", attributes, maxsplit=1, flags=re.MULTILINE)[0]
    return {found["name"]: " ".join(found["text"].split()) for found in _ATTRIBUTE.finditer(section)}
