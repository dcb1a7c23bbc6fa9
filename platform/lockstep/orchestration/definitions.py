"""All that Dagster gets of one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.orchestration.compaction_asset import compaction_asset
from lockstep.orchestration.housekeeping_asset import housekeeping_asset
from lockstep.orchestration.observed_assets import ledger_asset, topics_asset
from lockstep.orchestration.table_asset import table_asset
from lockstep.orchestration.table_check import table_check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import AssetChecksDefinition, AssetsDefinition, AssetSpec

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings


def stream_assets(
    stream: AnyStream, settings: Settings, *, owners: Sequence[str]
) -> list[AssetsDefinition | AssetSpec]:
    """The table, its compaction and housekeeping, its topics and its ledger."""
    return [
        topics_asset(stream, owners),
        table_asset(stream, settings, owners),
        ledger_asset(stream, settings, owners),
        compaction_asset(stream, settings, owners),
        housekeeping_asset(stream, settings, owners),
    ]


def stream_checks(stream: AnyStream, settings: Settings) -> list[AssetChecksDefinition]:
    """The check of the table."""
    return [table_check(stream, settings)]
