"""The entries of a stream in Dagster's catalog."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from dagster import FreshnessPolicy, MetadataValue
from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy

from assets.betting_markets import betting_markets
from assets.checksummed_books import checksummed_books
from assets.order_books import order_books
from lockstep import AvailableNow, Lookup, Objectives
from lockstep.declare.stream import AnyStream
from lockstep.derived import Derived
from lockstep.orchestration.definitions import make_derived_assets
from lockstep.orchestration.table_asset import (
    LEDGER_FAIL,
    TABLE_FAIL,
    make_column_schema,
    make_ledger_freshness,
    make_table_description,
    make_table_freshness,
    make_table_metadata,
    read_field_descriptions,
)
from lockstep.settings import Settings

STREAMS: tuple[AnyStream, ...] = (order_books, checksummed_books, betting_markets)


class Reading(msgspec.Struct):
    """A reading: of a sensor.

    Attributes:
        sensor: Its name: as painted
            on the door.
        value (float): Celsius.
        unit: Said here, and overruled by the field.

    Raises:
        nothing: No attribute.
    """

    sensor: str
    value: float
    unit: Annotated[str, msgspec.Meta(description="Of the value.")]
    floor: Annotated[int, msgspec.Meta(description="Where it hangs.")] | None = None
    bare: int = 0


class Bare(msgspec.Struct):
    value: int


class Keyed(msgspec.Struct, frozen=True):
    key: str


def test_a_field_is_described_by_its_meta_or_else_by_the_attributes_of_the_docstring() -> None:
    assert read_field_descriptions(Reading) == {
        "sensor": "Its name: as painted on the door.",
        "value": "Celsius.",
        "unit": "Of the value.",
        "floor": "Where it hangs.",
    }


def test_a_row_type_that_says_nothing_has_no_descriptions() -> None:
    assert read_field_descriptions(Bare) == {}


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.name)
def test_every_column_of_the_catalog_is_described(stream: AnyStream) -> None:
    columns = make_column_schema(stream.types.row).columns
    assert [column.name for column in columns if not column.description] == []


@pytest.mark.parametrize(
    ("stream", "integrity"),
    [
        (order_books, "Strict(evidence=Linked())"),
        (checksummed_books, "Strict(evidence=Checksum())"),
        (betting_markets, "Strict(evidence=LogOnly())"),
    ],
)
def test_integrity_and_trigger_are_shown_as_they_are_declared(
    stream: AnyStream, integrity: str, tmp_path: Path
) -> None:
    metadata = make_table_metadata(stream, tmp_path)
    assert (metadata["integrity"], metadata["trigger"]) == (integrity, "Every(seconds=5)")
    assert f"under `{integrity}`" in make_table_description(stream)


def test_every_address_of_an_object_store_is_one_of_the_store() -> None:
    """`Path` writes one slash for two."""
    looking = replace(order_books, lookups=(Lookup("tariffs", "reference/tariffs", key="key", row=Keyed),))
    derived = Derived(name="totals", sources=(order_books,), derive=lambda rows: rows)
    settings = Settings(table_root=Path("s3://bucket/tables"))
    shown = dict(make_table_metadata(looking, settings.table_root))
    (asset,) = make_derived_assets([derived], settings, owners=())
    addresses = (
        shown["dagster/uri"],
        shown["ledger"],
        shown["lookups"],
        *(asset.metadata_by_key[key]["dagster/uri"] for key in asset.keys),
    )
    assert addresses == (
        "s3://bucket/tables/order_books/table",
        MetadataValue.path("s3://bucket/tables/order_books/ledger"),
        {"tariffs": "s3://bucket/tables/reference/tariffs"},
        "s3://bucket/tables/totals/derived",
    )


@pytest.mark.parametrize(
    ("hours", "ledger", "table"),
    [(None, LEDGER_FAIL, TABLE_FAIL), (0.1, LEDGER_FAIL, TABLE_FAIL), (24, timedelta(hours=24), timedelta(hours=24))],
)
def test_the_freshness_of_the_assets_follows_a_longer_objective(
    hours: float | None, ledger: timedelta, table: timedelta
) -> None:
    """A shorter objective is for the check `health`: the assets are observed too rarely for it."""
    objectives = Objectives(freshness=None if hours is None else timedelta(hours=hours))
    stream = replace(order_books, objectives=objectives)
    wait = timedelta(seconds=5) if hours is None or hours < 1 else timedelta()
    policies = (make_ledger_freshness(stream), make_table_freshness(stream))
    assert [fail_window(policy) for policy in policies] == [ledger + wait, table + wait]


def fail_window(policy: FreshnessPolicy | None) -> timedelta:
    assert isinstance(policy, TimeWindowFreshnessPolicy)
    return policy.fail_window.to_timedelta()


def test_a_stream_of_bounded_runs_has_a_freshness_only_with_an_objective() -> None:
    bounded = replace(order_books, trigger=AvailableNow())
    assert (make_ledger_freshness(bounded), make_table_freshness(bounded)) == (None, None)
    for objective, window in ((timedelta(hours=26), timedelta(hours=26)), (timedelta(seconds=5), timedelta(minutes=1))):
        policy = make_table_freshness(replace(bounded, objectives=Objectives(freshness=objective)))
        assert fail_window(policy) == window
