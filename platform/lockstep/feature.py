"""The optional features, and the parts of the core to which each one adds.

The core runs, commits, halts, resumes and proves streams without any of them, and imports none: a `Feature` names
functions by text, which are imported when they are used. Executors load no feature.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from lockstep.errors import LockstepError, SettingsError

INSTALLED = (
    "archive",
    "compaction",
    "console",
    "copies",
    "current",
    "delivery",
    "deploy",
    "derived",
    "erase",
    "export",
    "health",
    "history",
    "host",
    "inference",
    "localdev",
    "quality",
    "rehearsal",
    "retention",
)
"""Folders below lockstep/features. Without its folder and its line here, a feature is gone."""


class ExtensionBroken(LockstepError):
    """A module of the setting `extensions` cannot be used; everything else works without it.

    Attributes:
        module: Its name.
    """

    def __init__(self, module: str, problem: str) -> None:
        super().__init__(
            f"the extension {module} cannot be used: {problem}",
            next_step="correct the module, or remove it from the setting extensions",
        )
        self.module = module


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """An optional feature, with the parts that it adds to the core.

    A reference is text, "module:name", which is imported on use.

    Attributes:
        name: Name of the folder.
        version: Version of its fields in the head of a table.
        commit_kinds: References to its kinds of commit (`CommitKind`); those of an extension are not read.
        proofs: References to functions that `lockstep verify` calls for their part of the proof: (folders,
            `StoredTables`, `Violations`).
        removed_sessions: References to functions that read the sessions that were removed from a partition: (id of the
            output table, `LedgerChain`); each returns `RemovedSessions`.
        head_fields: Its fields in the head: a table in which one is set needs this feature.
        needs: Features without which it cannot work.
        option: The option of `Stream` that a stream with its assets and jobs declares; empty for all streams.
        commands: Modules whose import registers commands.
        assets: Words that name its assets of a stream, as in `<stream>/<word>`.
        jobs: Words that name its jobs of a stream, as in `<stream>_<word>`; each has a schedule.
        schedules: Words that name its further schedules of a stream.
        stream_assets: References to makers of an asset: (stream, settings, owners).
        stream_checks: References to makers of a check of a stream's table: (stream, settings).
        stream_finders: References to functions that find the declaration of a stream that assets/ does not declare:
            (name, settings), None for an unknown stream.
        starters: References to functions that start a stream in a process that runs: (stream, settings, operator); each
            returns `Started` (operations/lifecycle.py), None without such a process.
        group_starters: References to functions that start the streams of a group which were stopped with the process
            that ran them: (group, streams, settings, operator); each returns `Started` values.
        table_listers: References to functions that list further streams with tables: (names of declared streams, root).
        query_tables: References to functions that add tables of a stream to a query in SQL: (`QueriedStream`,
            `ExitStack`); each returns `QueriedTable` values (operations/query.py).
        followers: References to functions that read the status of the declared followers of a kind:
            (`DeclaredFollowers`); each returns `FollowerStatus` (operations/followers.py).
        follower_proofs: References to functions with which `lockstep verify` compares the results of followers with the
            table: (stream, folders, `KafkaSettings`); each returns `FollowerProof` values (verify/report.py).
        compaction_debt: References to functions that measure files waiting for compaction: (folders, head, time now,
            bytes of a large file).
        kept_rows: References to functions that find copies of rows outside of the stream's tables: they take
            `ErasedHours` and return `KeptRows`.
        undone_rows: References to functions that find copies of rows which a rewind or a promotion undoes: they take
            `UndoneBatches` and return `KeptRows`.
        copied_since: References to functions that see whether such copies have appeared, at the commit of an erasure:
            (`ErasedHours`).
        withdrawal: References to functions that withdraw copies which appeared during an erasure: (`ErasedHours`).
        forgetting: References to functions that forget all sessions after an erasure: (folders).
        clean_up: References to `CleanUpStep` values, which housekeeping runs.
        drop_limits: References to functions that limit the hours whose rows retention may drop: (stream, folders); each
            returns a function that lists these hours, or None for no limit.
        derived_assets: References to makers of the asset of a derived table: (derived, settings, owners).
        alarms: References to functions that judge a stream: (`HealthFacts`, stream); they yield alarms.
        diagnoses: References to functions that `lockstep doctor` calls for the declared parts of the feature:
            (streams by name, settings); each yields `Diagnosis` values (operations/doctor/diagnosis.py).
        metrics: References to functions that read further figures of a stream: (folders); each yields `StreamGauge`
            values (operations/stream_gauges.py).
        code_finders: References to functions that find the chosen code of an installation: (code root); each returns
            its folder and its `CodeVersion`, None for the working folder.
        code_listers: References to functions that list digests of copies of code to keep: (code root).
        wiring: References that `lockstep.dagster` offers to jobs and sensors, by name.
    """

    name: str
    version: int = 1
    commit_kinds: tuple[str, ...] = ()
    proofs: tuple[str, ...] = ()
    removed_sessions: tuple[str, ...] = ()
    head_fields: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    option: str = ""
    commands: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    stream_assets: tuple[str, ...] = ()
    stream_checks: tuple[str, ...] = ()
    stream_finders: tuple[str, ...] = ()
    starters: tuple[str, ...] = ()
    group_starters: tuple[str, ...] = ()
    table_listers: tuple[str, ...] = ()
    query_tables: tuple[str, ...] = ()
    followers: tuple[str, ...] = ()
    follower_proofs: tuple[str, ...] = ()
    compaction_debt: tuple[str, ...] = ()
    kept_rows: tuple[str, ...] = ()
    undone_rows: tuple[str, ...] = ()
    copied_since: tuple[str, ...] = ()
    withdrawal: tuple[str, ...] = ()
    forgetting: tuple[str, ...] = ()
    clean_up: tuple[str, ...] = ()
    drop_limits: tuple[str, ...] = ()
    derived_assets: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    diagnoses: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    code_finders: tuple[str, ...] = ()
    code_listers: tuple[str, ...] = ()
    wiring: Mapping[str, str] = {}

    def is_declared_by(self, stream: object) -> bool:
        """Whether a stream has the assets and jobs of this feature."""
        return not self.option or bool(getattr(stream, self.option))


@cache
def list_installed() -> tuple[Feature, ...]:
    """The features of this release, in the order of `INSTALLED`."""
    return tuple(import_module(f"lockstep.features.{name}.feature").FEATURE for name in INSTALLED)


@cache
def list_features() -> tuple[Feature, ...]:
    """The features of this release, and after them the extensions of this installation."""
    return (*list_installed(), *_load_extensions()[0])


def load_commands(feature: Feature) -> None:
    """Import the modules of a feature's commands.

    Raises:
        ExtensionBroken: A module of an extension cannot be imported.
    """
    for module in feature.commands:
        try:
            import_module(module)
        except Exception as error:
            if feature.name in INSTALLED:
                raise
            raise ExtensionBroken(module, f"{type(error).__name__}: {error}") from error


def list_broken_extensions() -> tuple[ExtensionBroken, ...]:
    """The extensions of this installation that cannot be loaded; all others work."""
    return _load_extensions()[1]


@cache
def _load_extensions() -> tuple[tuple[Feature, ...], tuple[ExtensionBroken, ...]]:
    """Load the modules that the setting `extensions` names, each with a `Feature` as `FEATURE`."""
    loaded: list[Feature] = []
    broken: list[ExtensionBroken] = []
    names = _read_extensions()
    if names and (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    for name in names:
        try:
            loaded.append(_load_extension(name, {*INSTALLED, *(each.name for each in loaded)}))
        except ExtensionBroken as error:
            broken.append(error)
    return tuple(loaded), tuple(broken)


def _read_extensions() -> tuple[str, ...]:
    """Read the setting; wrong settings have none, and each command that reads settings reports them."""
    file = Path(os.environ.get("LOCKSTEP_SETTINGS", "lockstep.toml"))
    try:
        is_set = "LOCKSTEP_EXTENSIONS" in os.environ or "extensions" in file.read_text()
    except (OSError, ValueError):
        return ()
    if not is_set:
        return ()  # most installations: pydantic is not loaded for `lockstep --help`
    from lockstep.settings import load_settings

    try:
        return load_settings().extensions
    except SettingsError:
        return ()


def _load_extension(name: str, taken: Collection[str]) -> Feature:
    """Import an extension.

    Raises:
        ExtensionBroken: It cannot be imported, has no `Feature`, or its name is taken.
    """
    try:
        feature = getattr(import_module(name), "FEATURE", None)
    except Exception as error:  # the user's module: any error of its import
        raise ExtensionBroken(name, f"{type(error).__name__}: {error}") from error
    if not isinstance(feature, Feature):
        raise ExtensionBroken(name, f"it has no Feature named FEATURE, but {feature!r}")
    if feature.name in taken:
        raise ExtensionBroken(name, f"the name of its feature, {feature.name!r}, is taken")
    return feature


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
