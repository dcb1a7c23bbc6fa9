"""All Dagster definitions of streams and derived tables, with their lineage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster import AssetKey

from lockstep.addresses import make_absolute
from lockstep.feature import list_features_of, load_parts, load_reference
from lockstep.orchestration.dagster_types import AssetJob
from lockstep.orchestration.names import make_derived_key, make_ledger_key, make_table_key
from lockstep.orchestration.observed_assets import make_ledger_asset, make_topics_asset
from lockstep.orchestration.table_asset import make_table_asset
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from dagster import AssetChecksDefinition, AssetsDefinition, AssetSpec

    from lockstep.declare.derived import Derived
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings

__all__ = [
    "AssetJob",
    "make_assets",
    "make_derived_assets",
    "make_stream_assets",
    "make_stream_checks",
]


def make_assets(
    streams: Iterable[AnyStream], derived: Iterable[Derived], settings: Settings, *, owners: Sequence[str]
) -> list[AssetsDefinition | AssetSpec]:
    """All assets of a platform, with the lineage from the lookup tables of its streams."""
    streams = tuple(streams)
    derived = tuple(derived)
    upstream = find_lookup_assets(streams, derived, settings.table_root)
    assets: list[AssetsDefinition | AssetSpec] = []
    for stream in streams:
        assets += make_stream_assets(stream, settings, owners=owners, lookups=upstream[stream.name])
    assets += make_derived_assets(derived, settings, owners=owners)
    return assets


def make_stream_assets(
    stream: AnyStream, settings: Settings, *, owners: Sequence[str], lookups: Sequence[AssetKey] = ()
) -> list[AssetsDefinition | AssetSpec]:
    """The table, its topics and its ledger, and the assets that features add to a stream.

    Args:
        stream: The stream.
        settings: Paths of its tables.
        owners: Owners of the assets.
        lookups: The assets of its lookup tables; `make_assets` finds them.
    """
    assets: list[AssetsDefinition | AssetSpec] = [
        make_topics_asset(stream, owners),
        make_table_asset(stream, settings, owners, lookups),
        make_ledger_asset(stream, settings, owners),
    ]
    for feature in list_features_of(stream):
        assets += [load_reference(reference)(stream, settings, owners) for reference in feature.stream_assets]
    return assets


def make_stream_checks(stream: AnyStream, settings: Settings) -> list[AssetChecksDefinition]:
    """The checks of the table that features add: of its contents, and of the stream's health."""
    return [make(stream, settings) for make in load_parts("stream_checks")]


def make_derived_assets(
    tables: Iterable[Derived], settings: Settings, *, owners: Sequence[str]
) -> list[AssetsDefinition]:
    """The derived tables."""
    assets: list[AssetsDefinition] = []
    makers = tuple(load_parts("derived_assets"))
    for derived in tables:
        assets += [make(derived, settings, owners=owners) for make in makers]
    return assets


_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
"""Characters that Dagster allows in no name of an input."""


def find_lookup_assets(
    streams: Iterable[AnyStream], derived: Iterable[Derived], root: Path
) -> dict[str, tuple[AssetKey, ...]]:
    """The upstream assets that each stream has by its lookups, by name of the stream.

    A lookup table of a stream may be made of its own rows, by another stream or derived table: the batch reads the
    newest version. Dagster's assets have no cycles, so lookups of a cycle are left out.

    Args:
        streams: The streams.
        derived: The derived tables.
        root: The table root.
    """
    streams = tuple(streams)
    derived = tuple(derived)
    root = make_absolute(root)
    owners = {each.name: make_derived_key(each) for each in derived}
    owners |= {each.name: make_table_key(each) for each in streams}
    ledgers = {StreamFolders(each.name, root).ledger: make_ledger_key(each) for each in streams}
    reads = dict[str, set[str]]()
    for table in derived:
        reads[table.name] = {source.name for source in table.sources}
    lookups = dict[str, dict[AssetKey, str]]()
    for stream in streams:
        keys = dict[AssetKey, str]()
        tables = set[str]()
        for lookup in stream.lookups:
            folder = lookup.find_table(root)
            name = _find_owner(folder, root)
            keys[ledgers.get(folder) or owners.get(name) or _make_external_key(folder, root)] = name
            tables.add(name)
        lookups[stream.name] = keys
        reads[stream.name] = tables
    upstream = dict[str, tuple[AssetKey, ...]]()
    for stream_name, keys in lookups.items():
        # A table that is made of the stream would close a cycle of assets, which Dagster refuses.
        upstream[stream_name] = tuple(
            key for key, name in keys.items() if stream_name not in _find_upstream(name, reads)
        )
    return upstream


def _find_owner(table: Path, root: Path) -> str:
    """The first folder of a table under the table root; empty for a table elsewhere."""
    if table.is_relative_to(root) and table != root:
        return table.relative_to(root).parts[0]
    return ""


def _make_external_key(table: Path, root: Path) -> AssetKey:
    """The key of a table that nothing here writes: its path, relative to the table root if it is below."""
    start = root if table.is_relative_to(root) else table.anchor
    path = table.relative_to(start)
    return AssetKey([_NO_NAME.sub("_", part) for part in path.parts])


def _find_upstream(name: str, reads: Mapping[str, set[str]]) -> set[str]:
    """The tables of which a table is made, itself included."""
    upstream = set[str]()
    unvisited = [name]
    while unvisited:
        table = unvisited.pop()
        if table not in upstream:
            upstream.add(table)
            unvisited += reads.get(table, ())
    return upstream
