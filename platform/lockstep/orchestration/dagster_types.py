"""Types of Dagster's signatures that Dagster does not export."""

from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster import AssetKey, MetadataValue, TableColumnLineage, TableSchema

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

__all__ = ["AssetJob", "RawMetadataValue"]

AssetJob: TypeAlias = "UnresolvedAssetJobDefinition"
"""The result of `define_asset_job`; a name alone when the program runs."""
RawMetadataValue: TypeAlias = (
    MetadataValue[Any]
    | TableSchema
    | TableColumnLineage
    | AssetKey
    | PathLike[str]
    | dict[Any, Any]
    | float
    | int
    | list[Any]
    | str
    | datetime
    | None
)
"""A value of metadata, as Dagster takes it."""
