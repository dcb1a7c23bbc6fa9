"""The dataset: one folder an hour, published whole, with its manifest inside.

    <folder>/_export/options.json              how all hours are written; a change needs another folder
    <folder>/_export/source.json               the table as the newest export saw it
    <folder>/commit_hour=H/_manifest.json      rows, digest, files, version and batch of the table
    <folder>/commit_hour=H/[column=value/]...parquet
    <folder>/_staging/H-<uuid>/                an hour that is being written, or that a killed export left

Spark, Hive and Arrow ignore files whose names start with an underscore, and other readers take them for other files.
In a file system a rename is the only moment at which anything becomes visible: a reader sees a whole hour or none of
it. In an object store an hour is whole when it has its manifest (publish.py). Of two exports one publishes, and what a
killed one leaves is deleted by a later one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from lockstep.addresses import is_in_object_store
from lockstep.declare.options import Export
from lockstep.errors import LockstepError, format_some
from lockstep.features.export.publish import (
    delete_stale_folders,
    find_whole_folders,
    is_half_withdrawn,
    list_staging_folders,
    publish_folder,
    take_back_folder,
)
from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage
from lockstep.table.commit import Base
from lockstep.table.delta_log import make_entry_path
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders

OPTIONS = "_export"
MANIFEST_FILE = "_manifest.json"
SOURCE_FILE = "source.json"
HOUR_PREFIX = "commit_hour="


class ExportOptions(msgspec.Struct, frozen=True):
    """How the hours of a dataset are written, and of which table.

    Attributes:
        stream: Name of the stream.
        table_id: Delta's id of its table.
        columns: Columns; empty for all.
        partition_by: Further columns by which an hour is divided.
        codec: Compression.
        row_group_rows: Rows of a row group.
    """

    stream: str
    table_id: str
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    codec: str
    row_group_rows: int


class ExportedFile(msgspec.Struct, frozen=True):
    """A file of an exported hour.

    Attributes:
        path: Relative to the folder of the hour.
        rows: Number of rows.
        bytes: Bytes.
    """

    path: str
    rows: int
    bytes: int


class HourManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an exported hour, and its source.

    Attributes:
        hour: The commit hour.
        rows: Number of rows.
        digest: Sum of the hashes of the exported columns of all rows, in hexadecimal (features/compaction/proof.py).
        files: Its files.
        sources: Files of the table that were read, at `version`.
        version: Version of the table.
        generation: Generation of the table.
        below_batch: All its rows are of earlier batches.
        batches: The batches below it that counted: generation and last batch, oldest first.
        exported_at: Time, in seconds since 1970 (UTC).
    """

    hour: str
    rows: int
    digest: str
    files: tuple[ExportedFile, ...]
    sources: tuple[str, ...]
    version: int
    generation: int
    below_batch: int
    batches: tuple[tuple[int, int], ...]
    exported_at: float


class ExportSource(msgspec.Struct, frozen=True):
    """The table as an export saw it; stored before its first hour is published.

    Attributes:
        version: Version of the table.
        entry: SHA-256 of the log entry of that version, in hexadecimal.
        below_batch: All exported rows are of earlier batches.
        batches: The batches below it that count: generation and last batch, oldest first.
    """

    version: int
    entry: str
    below_batch: int
    batches: tuple[tuple[int, int], ...]


def list_batches(head: Head, below: int) -> tuple[tuple[int, int], ...]:
    """The batches below one that count: generation and last batch, oldest first."""
    batches = list[tuple[int, int]]()
    for generation, last in sorted(head.valid_batches.items()):
        batches.append((generation, min(last, below - 1)))
        if last >= below - 1:
            break
    return tuple(batches)


class ExportMismatch(LockstepError):
    """The folder holds an export that was written otherwise, of another table, or of batches that were rewound.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path, problem: str) -> None:
        super().__init__(
            f"{folder}: {problem}",
            next_step="declare another folder, Export(folder=...), or move this one away: its files are not changed",
        )
        self.folder = folder


def make_options(export: Export, stream: str, table_id: str) -> ExportOptions:
    """The options of a declaration."""
    return ExportOptions(
        stream=stream,
        table_id=table_id,
        columns=export.columns,
        partition_by=export.partition_by,
        codec=export.codec.value,
        row_group_rows=export.row_group_rows,
    )


def read_options(folder: Path) -> ExportOptions | None:
    """The options under which a dataset is written; None before the first export."""
    path = folder / OPTIONS / "options.json"
    try:
        return decode_json(find_storage(path).read(path), ExportOptions)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ExportMismatch(folder, f"{OPTIONS} cannot be read: {error}") from error


def check_options(folder: Path, options: ExportOptions) -> None:
    """Refuse a dataset that is written otherwise, and a folder in use that is none.

    Raises:
        ExportMismatch: It names the first difference.
    """
    stored = read_options(folder)
    if stored is None:
        foreign = sorted(set(find_storage(folder).list_names(folder)) - {OPTIONS})
        if foreign:
            raise ExportMismatch(folder, f"it is no dataset, and has other files or folders: {format_some(foreign)}")
        return
    for name in ExportOptions.__struct_fields__:
        wanted = getattr(options, name)
        actual = getattr(stored, name)
        if wanted != actual:
            raise ExportMismatch(folder, f"{name} is {wanted}, and its hours are written with {actual}")


def keep_options(folder: Path, options: ExportOptions) -> None:
    """Record the options with the first export.

    Raises:
        ExportMismatch: Another export recorded others.
    """
    path = folder / OPTIONS / "options.json"
    storage = find_storage(path)
    if read_options(folder) is None:
        storage.make_folder(path.parent)
        with suppress(FileExistsError):
            # Of two first exports one creates it; the other is checked by it below.
            storage.create_whole(path, msgspec.json.format(msgspec.json.encode(options)))
            storage.sync(path)
    check_options(folder, options)


def record_source(folder: Path, base: Base, table: Path, below_batch: int) -> None:
    """Store how an export sees the table, before it publishes an hour.

    Args:
        folder: The dataset.
        base: The table.
        table: Its folder.
        below_batch: All rows of the dataset are of earlier batches.
    """
    batches = list_batches(base.head, below_batch)
    source = ExportSource(base.version, _digest_entry(table, base.version), below_batch, batches)
    path = folder / OPTIONS / SOURCE_FILE
    find_storage(path).replace(path, msgspec.json.format(msgspec.json.encode(source)))
    find_storage(path).sync(path)


def read_source(folder: Path, base: Base, table: Path) -> ExportSource:
    """Read how the newest export saw the table.

    Raises:
        ExportMismatch: It cannot be read, or the table is an older copy that was restored.
    """
    path = folder / OPTIONS / SOURCE_FILE
    try:
        source = decode_json(find_storage(path).read(path), ExportSource)
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise ExportMismatch(folder, f"{OPTIONS}/{SOURCE_FILE} cannot be read: {error}") from error
    # A copy from before that version may reach its number again, with another entry; a deleted entry proves nothing.
    if base.version < source.version or _digest_entry(table, source.version) not in {source.entry, ""}:
        problem = f"its hours were written from version {source.version}, which is not one of this table"
        raise ExportMismatch(folder, f"{problem}: an older copy was restored")
    return source


def check_source(folder: Path, base: Base, table: Path) -> None:
    """Refuse a dataset whose rows are not those that count in the table any more, or not all of them.

    Raises:
        ExportMismatch: The table was rewound to a batch before exported ones, or is an older copy that was restored.
    """
    source = read_source(folder, base, table)
    if list_batches(base.head, source.below_batch) != source.batches:
        problem = f"its hours hold batches below {source.below_batch} that were rewound, or lack some that count again"
        raise ExportMismatch(folder, problem)


def _digest_entry(table: Path, version: int) -> str:
    """SHA-256 of a log entry, in hexadecimal; empty if it was deleted."""
    path = make_entry_path(table, version)
    try:
        return hashlib.sha256(find_storage(path).read(path)).hexdigest()
    except FileNotFoundError:
        return ""


def find_folder(export: Export, folders: StreamFolders) -> Path:
    """The folder of a stream's dataset."""
    return Path(export.folder) if export.folder else folders.export


def list_exported_hours(folder: Path) -> frozenset[str]:
    """The hours that are exported; in an object store also those of which files may be there already."""
    names = find_storage(folder).list_names(folder)
    return frozenset(name.removeprefix(HOUR_PREFIX) for name in names if name.startswith(HOUR_PREFIX))


def list_whole_hours(folder: Path, hours: Iterable[str]) -> frozenset[str]:
    """Those of some exported hours that have all their files."""
    whole_folders = find_whole_folders((_find_hour(folder, hour) for hour in hours), MANIFEST_FILE)
    return frozenset(target.name.removeprefix(HOUR_PREFIX) for target in whole_folders)


def read_manifest(folder: Path, hour: str) -> HourManifest:
    """The manifest of an exported hour.

    Raises:
        FileNotFoundError: The hour is not exported.
        ExportMismatch: The manifest cannot be read.
    """
    path = _find_hour(folder, hour) / MANIFEST_FILE
    try:
        return decode_json(find_storage(path).read(path), HourManifest)
    except msgspec.DecodeError as error:
        raise ExportMismatch(folder, f"the manifest of hour {hour} cannot be read: {error}") from error


def is_undone(folder: Path, hour: str, head: Head) -> bool:
    """Whether a published hour holds rows of batches that do not count, or lacks rows of batches that do.

    Raises:
        ExportMismatch: The manifest cannot be read.
    """
    try:
        manifest = read_manifest(folder, hour)
    except FileNotFoundError:
        return False  # withdrawn, or not whole
    return list_batches(head, manifest.below_batch) != manifest.batches


def write_manifest(staged: Path, manifest: HourManifest) -> None:
    """Add the manifest to the files of an hour."""
    storage = find_storage(staged)
    storage.replace(staged / MANIFEST_FILE, msgspec.json.format(msgspec.json.encode(manifest)))
    storage.sync(staged / MANIFEST_FILE)


def publish_hour(folder: Path, staged: Path, manifest: HourManifest) -> bool:
    """Publish an hour under its name; False if another export has published it before.

    Args:
        folder: The dataset.
        staged: Folder with the files of the hour and its manifest, all synced.
        manifest: Its content.
    """
    return publish_folder(staged, _find_hour(folder, manifest.hour), MANIFEST_FILE)


def take_back_hour(folder: Path, hour: str, is_wanted: Callable[[], bool] = lambda: True) -> bool:
    """Take an hour back that an erasure or a rewind overtook: it leaves the readers' sight at once.

    Args:
        folder: The dataset.
        hour: The hour.
        is_wanted: Whether the published hour is the wrong one: another export may have written it again.

    Returns:
        False if it is not exported, or not the wrong one.
    """
    return take_back_folder(folder, _find_hour(folder, hour), MANIFEST_FILE, is_wanted)


def list_half_withdrawn_hours(folder: Path) -> frozenset[str]:
    """The hours of an object store whose withdrawal was killed, or has not ended: rows of them may be visible."""
    if not is_in_object_store(folder):
        return frozenset()
    # The name of a staging folder starts with its hour, and ends with a unique number.
    hours = {name.rpartition("-")[0] for name in list_staging_folders(folder)}
    return frozenset(hour for hour in hours if is_half_withdrawn(folder, _find_hour(folder, hour), MANIFEST_FILE))


def delete_leftovers(folder: Path) -> int:
    """Delete hours that killed exports left a day ago; returns their number."""
    hours = [_find_hour(folder, hour) for hour in list_exported_hours(folder)]
    return delete_stale_folders(folder, hours, MANIFEST_FILE)


def _find_hour(folder: Path, hour: str) -> Path:
    return folder / f"{HOUR_PREFIX}{hour}"
