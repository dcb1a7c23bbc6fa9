"""The optional features, and the parts of the core to which each one adds.

The core runs, commits, halts, resumes and proves streams without any of them, and imports none: a `Feature` names
functions by text, which are imported when they are used. Executors load no feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import msgspec

INSTALLED = (
    "compaction",
    "copies",
    "derived",
    "erase",
    "export",
    "health",
    "history",
    "localdev",
    "quality",
    "rehearsal",
    "retention",
)
"""Folders below lockstep/features. Without its folder and its line here, a feature is gone."""


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """An optional feature, with the parts that it adds to the core.

    A reference is text, "module:name", which is imported on use.

    Attributes:
        name: Name of the folder.
        needs: Features without which it cannot work.
        option: The option of `Stream` that a stream with its assets and jobs declares; empty for all streams.
        commands: Modules whose import registers commands.
        assets: Words that name its assets of a stream, as in `<stream>/<word>`.
        jobs: Words that name its jobs of a stream, as in `<stream>_<word>`; each has a schedule.
        schedules: Words that name its further schedules of a stream.
        stream_assets: References to makers of an asset: (stream, settings, owners).
        stream_checks: References to makers of a check of a stream's table: (stream, settings).
        stream_finders: References to functions that find the declaration of a stream that assets/ does not declare:
            (name, settings), None if there is no such stream.
        table_listers: References to functions that list further streams with tables: (names of declared streams, root).
        derived_assets: References to makers of the asset of a derived table: (derived, settings, owners).
        wiring: References that `lockstep.dagster` offers to jobs and sensors, by name.
    """

    name: str
    needs: tuple[str, ...] = ()
    option: str = ""
    commands: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    stream_assets: tuple[str, ...] = ()
    stream_checks: tuple[str, ...] = ()
    stream_finders: tuple[str, ...] = ()
    table_listers: tuple[str, ...] = ()
    derived_assets: tuple[str, ...] = ()
    wiring: Mapping[str, str] = {}

    def is_declared_by(self, stream: object) -> bool:
        """Whether a stream has the assets and jobs of this feature."""
        return not self.option or getattr(stream, self.option) is not None


@cache
def list_features() -> tuple[Feature, ...]:
    """The installed features, in the order of `INSTALLED`."""
    return tuple(import_module(f"lockstep.features.{name}.feature").FEATURE for name in INSTALLED)


def list_features_of(stream: object) -> tuple[Feature, ...]:
    """The installed features whose assets and jobs a stream has."""
    return tuple(feature for feature in list_features() if feature.is_declared_by(stream))


def load_reference(reference: str) -> Any:
    """Import the value that a reference names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def load_parts(field: str) -> Iterator[Any]:
    """Import the values that the installed features name in a field, in their order.

    Args:
        field: Name of a field of `Feature` with references.
    """
    for feature in list_features():
        yield from map(load_reference, getattr(feature, field))
