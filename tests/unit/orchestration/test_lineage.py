"""The lookup tables of a stream are upstream assets of its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, AssetsDefinition, Definitions

from lockstep import Lookup
from lockstep.derived import Derived
from lockstep.orchestration.definitions import make_assets
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings
from tests.support.weighing_stream import Weight, weighing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lockstep.declare.stream import AnyStream

ROOT = Path("/data/tables")
SETTINGS = Settings(table_root=ROOT)


def reading(name: str, *paths: str) -> AnyStream:
    """Return a stream with lookups in these tables."""
    lookups = [Lookup(f"lookup_{n}", path, key="name", row=Weight) for n, path in enumerate(paths)]
    return replace(weighing(r"t\..+"), name=name, lookups=tuple(lookups))


def rows_of(rows: DataFrame) -> DataFrame:
    """Return the rows without a change."""
    return rows


def upstream(*streams: AnyStream, derived: tuple[Derived, ...] = ()) -> dict[str, set[str]]:
    """Return the parents of each stream's table, without its topics; the code location must load."""
    location = Definitions(
        assets=make_assets(streams, derived, SETTINGS, owners=()), resources={"spark": SparkResource()}
    )
    Definitions.validate_loadable(location)
    graph = location.get_repository_def().asset_graph
    return {
        stream.name: {key.to_user_string() for key in graph.get(AssetKey([stream.name, "table"])).parent_keys}
        - {f"{stream.name}/topics"}
        for stream in streams
    }


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("books/table", "books/table"),
        ("/data/tables/books/table", "books/table"),
        ("books/quarantine", "books/table"),
        ("books/ledger", "books/ledger"),
        ("activity/derived", "activity/table"),
        ("reference/instruments", "reference/instruments"),
        ("/mnt/my data/instruments.delta", "mnt/my_data/instruments_delta"),
    ],
)
def test_the_asset_of_a_table_that_is_looked_up_is_upstream(path: str, key: str) -> None:
    books = reading("books")
    found = upstream(
        reading("trades", path), books, derived=(Derived(name="activity", sources=[books], derive=rows_of),)
    )
    assert found == {"trades": {key}, "books": set()}


def test_a_table_that_two_streams_look_up_is_one_asset() -> None:
    found = upstream(reading("trades", "/mnt/instruments", "/mnt/venues"), reading("books", "/mnt/instruments"))
    assert found == {"trades": {"mnt/instruments", "mnt/venues"}, "books": {"mnt/instruments"}}


def test_lookups_of_a_cycle_are_no_edges_and_the_location_loads() -> None:
    books = reading("books", "activity/derived", "/mnt/venues")
    activity = Derived(name="activity", sources=[books], derive=rows_of)
    found = upstream(books, reading("trades", "orders/table"), reading("orders", "trades/table"), derived=(activity,))
    assert found == {"books": {"mnt/venues"}, "trades": set(), "orders": set()}


def test_the_catalog_names_every_table_that_is_looked_up() -> None:
    assets = make_assets([reading("trades", "books/table", "/mnt/venues")], (), SETTINGS, owners=())
    (table,) = (each for each in assets if isinstance(each, AssetsDefinition) and each.key.path[-1] == "table")
    assert table.metadata_by_key[table.key]["lookups"] == {
        "lookup_0": "/data/tables/books/table",
        "lookup_1": "/mnt/venues",
    }
