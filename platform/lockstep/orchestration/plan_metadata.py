"""The description of a result as metadata of a materialization."""

from datetime import datetime

from dagster import MetadataValue, TableRecord

from lockstep.operations.plan_frame import Described, Labelled, Records, Unit
from lockstep.orchestration.dagster_types import RawMetadataValue

ROWS_SHOWN = 50
"""Rows of a table in metadata; `--json` of the command has all."""


def make_metadata(result: Described) -> dict[str, RawMetadataValue]:
    """Return the facts by their labels with underscores, the tables with rows, and the notes."""
    shown = result.describe()
    metadata = {_make_key(fact.label): _make_value(fact) for fact in shown.facts}
    metadata |= {_make_key(each.label): _make_table(each) for each in shown.records if each.rows}
    if shown.notes:
        metadata["notes"] = "; ".join(shown.notes)
    return metadata


def _make_key(label: str) -> str:
    return label.replace(" ", "_")


def _make_value(fact: Labelled) -> RawMetadataValue:
    if fact.value is None or fact.value == "":
        return "none"
    if isinstance(fact.value, datetime):
        return MetadataValue.timestamp(fact.value)
    if fact.unit is Unit.PATH:
        return MetadataValue.path(str(fact.value))
    return fact.value


def _make_table(records: Records) -> RawMetadataValue:
    return MetadataValue.table([_make_record(records.columns, row) for row in records.rows[:ROWS_SHOWN]])


def _make_record(columns: tuple[str, ...], row: tuple[object, ...]) -> TableRecord:
    return TableRecord({name: _make_cell(value) for name, value in zip(columns, row, strict=True)})


def _make_cell(value: object) -> str | int | float | None:
    if isinstance(value, str | int | float) or value is None:
        return value
    return str(value)
