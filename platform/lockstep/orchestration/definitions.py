"""All Dagster definitions of one stream, and of derived tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition as AssetJob

from lockstep.orchestration.compaction_asset import make_compaction_asset
from lockstep.orchestration.derived_asset import make_derived_asset
from lockstep.orchestration.export_asset import make_export_asset
from lockstep.orchestration.health_check import make_health_check
from lockstep.orchestration.housekeeping_asset import make_housekeeping_asset
from lockstep.orchestration.observed_assets import make_ledger_asset, make_topics_asset
from lockstep.orchestration.table_asset import make_table_asset
from lockstep.orchestration.table_check import make_table_check

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dagster import AssetChecksDefinition, AssetsDefinition, AssetSpec

    from lockstep.declare.derived import Derived
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings

__all__ = ["AssetJob", "make_derived_assets", "make_stream_assets", "make_stream_checks"]  # Dagster exports no AssetJob


def make_stream_assets(
    stream: AnyStream, settings: Settings, *, owners: Sequence[str]
) -> list[AssetsDefinition | AssetSpec]:
    """The table, its compaction and housekeeping, its topics and its ledger; its export, where it declares one."""
    return [
        make_topics_asset(stream, owners),
        make_table_asset(stream, settings, owners),
        make_ledger_asset(stream, settings, owners),
        make_compaction_asset(stream, settings, owners),
        make_housekeeping_asset(stream, settings, owners),
        *([] if stream.export is None else [make_export_asset(stream, settings, owners)]),
    ]


def make_stream_checks(stream: AnyStream, settings: Settings) -> list[AssetChecksDefinition]:
    """The checks of the table: of its contents, and of the stream's health."""
    return [make_table_check(stream, settings), make_health_check(stream, settings)]


def make_derived_assets(
    tables: Iterable[Derived], settings: Settings, *, owners: Sequence[str]
) -> list[AssetsDefinition]:
    """The derived tables."""
    return [make_derived_asset(derived, settings, owners=owners) for derived in tables]
