"""Compacts a plain Parquet dataset of others: a new generation in a folder next to it, published by a pointer.

    readings/                     the dataset; it is never changed
    readings.compacted/
      generation-000001/          all its rows in files of the target size, the same hive folders; manifest.json last
      generation-000002/
      current -> generation-000002   what readers open

A plain dataset has no log, so files that are replaced in place are seen twice or not at all by a reader under way.
Readers open `current` instead, and old generations stay until somebody removes them. Order: files of a folder by name,
rows as they are in their file.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.features.compaction.plan import LARGE_RATIO
from lockstep.features.compaction.rewrite import ROW_GROUP_BYTES
from lockstep.model.decoding import decode_json
from lockstep.operations.plan_frame import Description, Labelled, Obstacle, Refused, Unit
from lockstep.storage import find_storage, read_named_file, require_file_system
from lockstep.table.live_files import TARGET_BYTES
from lockstep.table.row_digest import digest_rows
from lockstep.table.row_groups import regroup_rows, widen_schema

SUFFIX = ".compacted"
POINTER = "current"
MANIFEST = "_manifest.json"
STAGING = ".staging-"
GROUP_ROWS_MAX = 1_000_000
COMPRESSION_LEVEL = 3
"""zstd's default: a foreign dataset is compacted once and read for years."""
MANIFEST_BYTES_MAX = 256_000_000
STALE_SECONDS = 86_400.0
"""Age of a staging folder that a killed compaction left."""
MODULUS = 2**64
_GENERATION = re.compile(r"generation-\d{6,}")
_STAGED = re.compile(rf"{re.escape(STAGING)}[0-9a-f]{{32}}")
"""A file with another name is foreign."""
MAGIC = b"PAR1"
"""The first bytes of a Parquet file."""
OTHER_LOGS = {
    "_delta_log": "a Delta table; if it is of a stream: lockstep compact STREAM; else: OPTIMIZE, by its writer",
    "_spark_metadata": "a sink of Structured Streaming, whose log names the files that count; read it by Spark",
    ".hoodie": "a Hudi table; compact it by Hudi",
    "metadata": "an Iceberg table; compact it by rewrite_data_files",
}


def _refuse(folder: Path, problem: str, next_step: str) -> Refused:
    """The refusal of a folder that cannot be compacted as a plain Parquet dataset; nothing was published."""
    obstacle = Obstacle("it is not a plain dataset", f"{folder}: {problem}", next_step)
    return Refused(folder.name, "the compaction", [obstacle])


class PlainFile(msgspec.Struct, frozen=True):
    """A file of the dataset, relative to it. Its time tells a file that was written again under its name."""

    path: str
    size: int
    modified_at: float
    rows: int

    @property
    def folder(self) -> str:
        """Its hive folder; empty for none."""
        return self.path.rpartition("/")[0]


class DatasetBin(msgspec.Struct, frozen=True):
    """Consecutive files of one folder that become one file; a single one is copied as it is."""

    folder: str
    files: tuple[PlainFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class DatasetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a compaction of a dataset.

    Attributes:
        dataset: Its folder.
        generation: Number of the generation that would be written; 0 for none.
        bins: The files of the generation.
        files_before: Files of the dataset.
        files_after: Files of the generation.
        folders: Hive folders.
        bytes: Bytes to rewrite; files that stay as they are, are copied.
        rows: Rows of the dataset.
        current: The folder that readers open now; empty for none.
        removable: Generations that `--remove-old` would delete.
        reason: Why there is nothing to write; empty otherwise.
    """

    dataset: str
    generation: int
    bins: tuple[DatasetBin, ...]
    files_before: int
    files_after: int
    folders: int
    bytes: int
    rows: int
    current: str
    removable: tuple[str, ...]
    reason: str

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("files", self.files_before),
            Labelled("rows", self.rows),
            Labelled("folders", self.folders),
            Labelled("they become", self.files_after, note=self.reason),
            Labelled("generation", self.generation),
            Labelled("bytes to rewrite", self.bytes, Unit.BYTES),
            Labelled("readers open", self.current, Unit.PATH),
            Labelled("--remove-old would delete", ", ".join(self.removable)),
        )
        return Description(title=f"{self.dataset}: compaction", facts=facts)


class DatasetManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a generation; the last file of its folder.

    Attributes:
        sources: The files of the dataset that it was made of.
        files: Its own files.
        rows: Its rows, as many as those of the sources.
        digest: Sum of the hashes of its rewritten rows, equal to that of the sources (features/compaction/proof.py).
        written_at: Time, in seconds since 1970 (UTC).
    """

    sources: tuple[PlainFile, ...]
    files: int
    rows: int
    digest: str
    written_at: float


class DatasetCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction of a dataset.

    Attributes:
        plan: Its plan.
        is_published: Whether its generation is current; false without anything to do, or if another was faster.
        current: The folder that readers open.
        rows: Rows of the generation.
        digest: Proof of the rewritten rows; empty without a new generation.
        removed: Generations that were deleted.
        cpu_seconds: CPU time.
    """

    plan: DatasetPlan
    is_published: bool
    current: str
    rows: int
    digest: str
    removed: tuple[str, ...]
    cpu_seconds: float

    def describe(self) -> Description:
        """Return its description."""
        reason = "" if self.is_published else self.plan.reason or "another compaction was faster"
        facts = (
            Labelled("files before", self.plan.files_before),
            Labelled("files after", self.plan.files_after, note=reason),
            Labelled("rows", self.rows),
            Labelled("digest of the rewritten rows", self.digest),
            Labelled("readers open", self.current, Unit.PATH),
            Labelled("deleted generations", ", ".join(self.removed)),
        )
        return Description(title=f"{self.plan.dataset}: compacted", facts=facts)


def plan_dataset(dataset: Path, *, target_bytes: int = TARGET_BYTES) -> DatasetPlan:
    """What `compact_dataset` would do. Reads footers; changes nothing.

    Raises:
        Refused: It is not a plain Parquet dataset, a file cannot be read, columns differ in type, or files that the
            current generation was made of are gone.
        NeedsFileSystem: It is in an object store.
    """
    require_file_system(dataset, "make a symbolic link")
    dataset = dataset.resolve()
    _refuse_other_formats(dataset)
    files = _list_files(dataset)
    _unite_schemas(dataset, files)
    generations = _list_generations(dataset)
    pointed = find_storage(dataset).read_pointer(_home(dataset) / POINTER)
    bins = tuple(_plan_bins(files, target_bytes))
    reason = _find_reason_against(dataset, files, bins, generations)
    plan = DatasetPlan(
        dataset=str(dataset),
        generation=0,
        bins=(),
        files_before=len(files),
        files_after=len(files),
        folders=len({file.folder for file in files}),
        bytes=0,
        rows=sum(file.rows for file in files),
        current=str(pointed or ""),
        removable=tuple(generations[:-1]),
        reason=reason,
    )
    if reason:
        return plan
    return msgspec.structs.replace(
        plan,
        generation=_find_next_number(generations),
        bins=bins,
        files_after=len(bins),
        bytes=sum(part.size for part in bins if len(part.files) > 1),
        removable=tuple(generations),
    )


def _find_reason_against(
    dataset: Path, files: tuple[PlainFile, ...], bins: Sequence[DatasetBin], generations: Sequence[str]
) -> str:
    """Why there is nothing to write; empty for no reason.

    Raises:
        Refused: Files that the newest generation was made of are gone.
    """
    if not generations:
        return "no folder has two small files" if len(bins) == len(files) else ""
    sources = _read_manifest(dataset, generations[-1]).sources
    gone = sorted({file.path for file in sources} - {file.path for file in files})
    # Their rows would vanish for the readers of the next generation: a deletion is not ours to publish.
    if gone:
        problem = f"{len(gone)} files of which {generations[-1]} was made are gone, {gone[0]} first"
        raise _refuse(dataset, problem, f"restore them, or move {_home(dataset)} away to start again")
    return "nothing has changed since the current generation" if sources == files else ""


def _find_next_number(generations: Sequence[str]) -> int:
    if not generations:
        return 1
    return int(generations[-1].rpartition("-")[2]) + 1


def compact_dataset(dataset: Path, *, target_bytes: int = TARGET_BYTES, remove_old: bool = False) -> DatasetCompaction:
    """Write all rows of a dataset as a new generation of larger files; safe while others read or do it.

    1. Plan. Delete what killed compactions left; point to the newest generation if one died before that.
    2. Write each bin into a staging folder, a row group at a time; read it again: rows and digest must be equal.
    3. See that no source has changed meanwhile. Publish: the manifest, the name of the generation, the pointer.
    4. Delete the generations before it, on request.

    Raises:
        Refused: See `plan_dataset`; or a source changed, or the written rows differ from it.
        NeedsFileSystem: It is in an object store.
    """
    started = time.process_time()  # 1
    plan = plan_dataset(dataset, target_bytes=target_bytes)
    storage = find_storage(dataset)
    dataset = Path(plan.dataset)
    # Before anything is written: a refusal after the work would leave it half done.
    if remove_old:
        for name in plan.removable:
            _refuse_foreign_files(dataset, name)
    _delete_stale(dataset)
    _point_to_newest(dataset)
    manifest = None
    if plan.generation:
        staged = _home(dataset) / f"{STAGING}{uuid.uuid4().hex}"
        try:
            manifest = _write_generation(dataset, staged, plan)  # 2, 3
        finally:
            storage.delete_folder(staged)
    generations = _list_generations(dataset)
    removed = tuple(generations[:-1]) if remove_old else ()  # 4
    for name in removed:
        storage.delete_folder(_home(dataset) / name)
    return DatasetCompaction(
        plan=plan,
        is_published=manifest is not None,
        current=str(_home(dataset) / POINTER) if generations else "",
        rows=manifest.rows if manifest else plan.rows,
        digest=manifest.digest if manifest else "",
        removed=removed,
        cpu_seconds=round(time.process_time() - started, 3),
    )


def _home(dataset: Path) -> Path:
    return dataset.with_name(f"{dataset.name}{SUFFIX}")


def _list_generations(dataset: Path) -> list[str]:
    """The published generations, oldest first."""
    return sorted(name for name in find_storage(dataset).list_names(_home(dataset)) if _GENERATION.fullmatch(name))


def _read_manifest(dataset: Path, generation: str) -> DatasetManifest:
    """The content of a generation.

    Raises:
        Refused: It has no manifest, or that of something else.
        PathRefused: It is a link.
    """
    folder = _home(dataset) / generation
    step = f"move {_home(dataset)} away to start again: it is not deleted"
    try:
        content = read_named_file(_home(dataset), f"{generation}/{MANIFEST}", MANIFEST_BYTES_MAX)
        return decode_json(content, DatasetManifest)
    except FileNotFoundError:
        raise _refuse(folder, f"has no {MANIFEST}: it is not a generation", step) from None
    except msgspec.DecodeError as error:
        raise _refuse(folder, f"{MANIFEST} cannot be read: {error}", step) from error


def _refuse_foreign_files(dataset: Path, generation: str) -> None:
    """Refuse to delete a generation that holds more than its manifest lists."""
    own = _read_manifest(dataset, generation).files + 1
    folder = _home(dataset) / generation
    count = sum(1 for _ in find_storage(folder).walk_files(folder))
    if count > own:
        problem = f"has {count} files, of which {own} are its own: it is not deleted"
        raise _refuse(folder, problem, "take the others away, or delete the generation yourself")


def _refuse_other_formats(dataset: Path) -> None:
    storage = find_storage(dataset)
    if storage.exists(dataset / MANIFEST) and dataset.parent.name.endswith(SUFFIX):
        origin = dataset.parent.with_name(dataset.parent.name.removesuffix(SUFFIX))
        raise _refuse(dataset, "is a generation of a compaction", f"lockstep compact {origin}")
    for name, what in OTHER_LOGS.items():
        for log in storage.find_files(dataset, f"**/{name}"):  # also of a table inside of it
            # "metadata" is a common name: only with its JSON files it is Iceberg's.
            is_hidden = _is_hidden(log.relative_to(dataset).parts[:-1])
            if not is_hidden and (name != "metadata" or storage.find_files(log, "*.json")):
                kind, _, instead = what.partition("; ")
                raise _refuse(log.parent, f"is {kind}: its files alone are not its rows", instead)


def _list_files(dataset: Path) -> tuple[PlainFile, ...]:
    """The Parquet files by name; names that start with a dot or underscore are hidden, as for Spark."""
    storage = find_storage(dataset)
    files = list[PlainFile]()
    for path in storage.find_files(dataset, "**/*.parquet"):
        parts = path.relative_to(dataset).parts
        status = storage.get_status(path)
        if status is None or _is_hidden(parts):
            continue
        rows = _read_footer(dataset, path).num_rows
        files.append(PlainFile("/".join(parts), status.size, status.modified_at, rows))
    if not files:
        raise _refuse(dataset, "holds no Parquet files", "name the folder of a dataset of *.parquet files")
    _refuse_other_names(dataset)
    _refuse_linked_folders(dataset)
    return tuple(sorted(files, key=lambda file: (file.folder, file.path)))


def _is_hidden(parts: Iterable[str]) -> bool:
    return any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in parts)


def _refuse_other_names(dataset: Path) -> None:
    """Refuse Parquet files of other names: readers that go by the content would miss their rows in a generation."""
    storage = find_storage(dataset)
    others = [name for name, _ in storage.walk_files(dataset) if not name.endswith(".parquet")]
    visible = [name for name in others if not _is_hidden(name.split("/"))]
    foreign = sorted(name for name in visible if _is_parquet(dataset / name))
    if foreign:
        problem = f"{len(foreign)} Parquet files are not named *.parquet, {foreign[0]} first"
        raise _refuse(dataset, problem, "rename them, or take them away")


def _refuse_linked_folders(dataset: Path) -> None:
    """Refuse folders that are links: readers follow them, the listing does not."""
    storage = find_storage(dataset)
    listed = [path for path in storage.find_files(dataset, "**/*") if not _is_hidden(path.relative_to(dataset).parts)]
    parents = {path.parent for path in listed}
    # A folder that has names, but none in the listing, was not entered by it.
    links = [path for path in listed if path not in parents and storage.list_names(path)]
    if links:
        problem = f"{len(links)} folders are links, {links[0].relative_to(dataset)} first"
        raise _refuse(dataset, problem, "put the folders themselves there")


def _is_parquet(path: Path) -> bool:
    try:
        return find_storage(path).read_range(path, 0, len(MAGIC)) == MAGIC
    except FileNotFoundError:  # deleted meanwhile
        return False


def _read_footer(dataset: Path, path: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(find_storage(path).open_source(path))
    except (pa.ArrowInvalid, OSError) as error:
        raise _refuse(dataset, f"{path} cannot be read: {error}", "restore the file, or take it away") from error


def _unite_schemas(dataset: Path, files: Iterable[PlainFile]) -> pa.Schema:
    """The columns of all files; those that some lack are null there.

    Raises:
        Refused: A column has two types, or one for which no digest is defined.
    """
    united: pa.Schema | None = None
    for file in files:
        path = dataset / file.path
        schema = pq.read_schema(find_storage(path).open_source(path)).remove_metadata()
        try:
            united = schema if united is None else pa.unify_schemas([united, schema])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            problem = f"{file.path} has columns of other types than the files before it: {error}"
            raise _refuse(dataset, problem, "convert the files to one schema first") from error
    schema = pa.schema([field.with_nullable(nullable=True) for field in united or ()])
    row_of_nulls = [pa.nulls(1, field.type) for field in schema]
    try:
        digest_rows(_to_digest(pa.table(row_of_nulls, schema=schema)))
    except (TypeError, pa.ArrowNotImplementedError) as error:
        raise _refuse(dataset, f"cannot be proven: {error}", "compact it by the tool that wrote it") from error
    return schema


def _plan_bins(files: tuple[PlainFile, ...], target_bytes: int) -> Iterator[DatasetBin]:
    """Consecutive small files up to the target; a large file stays one, and parts those before it from those after."""
    for folder, group in groupby(files, key=lambda file: file.folder):
        small = list[PlainFile]()
        size = 0
        for file in group:
            is_large = file.size >= target_bytes * LARGE_RATIO
            if small and (is_large or size + file.size > target_bytes):
                yield DatasetBin(folder, tuple(small))
                small = []
                size = 0
            if is_large:
                yield DatasetBin(folder, (file,))
            else:
                small.append(file)
                size += file.size
        if small:
            yield DatasetBin(folder, tuple(small))


def _write_generation(dataset: Path, staged: Path, plan: DatasetPlan) -> DatasetManifest | None:
    """Write, prove and publish a generation; None if another compaction was faster."""
    storage = find_storage(dataset)
    sources = tuple(chain.from_iterable(part.files for part in plan.bins))
    schema = _unite_schemas(dataset, sources)
    digest = 0
    numbers = dict[str, int]()
    storage.make_folder(staged)
    for part in plan.bins:
        number = numbers.get(part.folder, -1) + 1
        numbers[part.folder] = number
        target = staged / part.folder / f"part-{number:05d}.parquet"
        if len(part.files) == 1:
            # A copy and not a second name of the file: its owner may write it again in place.
            storage.copy(dataset / part.files[0].path, target)
        else:
            digest = (digest + _write_bin(dataset, part, target, schema)) % MODULUS
    # A source that was written again meanwhile would be in the generation in part.
    if _list_files(dataset) != sources:
        raise _refuse(dataset, "was changed while it was read", "compact it again once its writer rests")
    manifest = DatasetManifest(
        sources=sources, files=len(plan.bins), rows=plan.rows, digest=f"{digest:016x}", written_at=time.time()
    )
    storage.replace(staged / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    # Before the rename, so that a crash leaves no generation without manifest.
    storage.sync(staged / MANIFEST)
    target = _home(dataset) / f"generation-{plan.generation:06d}"
    try:
        # One rename: the generation is whole or not there.
        storage.move(staged, target)
    except OSError:
        if not storage.exists(target / MANIFEST):
            raise
        return None
    _point_to_newest(dataset)
    return manifest


def _write_bin(dataset: Path, part: DatasetBin, target: Path, schema: pa.Schema) -> int:
    """Write the rows of some files as one, a row group at a time; the digest of both."""
    storage = find_storage(target)
    digest = 0
    rows = sum(file.rows for file in part.files)
    footers = [_read_footer(dataset, dataset / file.path) for file in part.files]
    decoded_bytes = sum(map(_count_decoded_bytes, footers))
    group_rows = max(1, min(GROUP_ROWS_MAX, rows * ROW_GROUP_BYTES // max(1, decoded_bytes)))
    pending = storage.open_pending(target)
    try:
        with pq.ParquetWriter(pending.sink, schema, compression="zstd", compression_level=COMPRESSION_LEVEL) as writer:
            for group in regroup_rows(_read_rows(dataset, part.files, schema), group_rows):
                digest = (digest + digest_rows(_to_digest(group))) % MODULUS
                writer.write_table(group)
        pending.finish()
    finally:
        pending.abandon()
    written = 0
    after = 0
    with pq.ParquetFile(storage.open_source(target), pre_buffer=False) as parquet:
        for number in range(parquet.num_row_groups):
            group = parquet.read_row_group(number, use_threads=False)
            written += len(group)
            after = (after + digest_rows(_to_digest(group))) % MODULUS
    if (written, after) != (rows, digest):
        problem = f"{rows} rows with digest {digest:016x} became {written} with {after:016x}; nothing was published"
        raise _refuse(dataset, problem, "check disk and memory of this machine, then compact again")
    return after


def _count_decoded_bytes(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))


def _read_rows(dataset: Path, files: Iterable[PlainFile], schema: pa.Schema) -> Iterator[pa.Table]:
    for file in files:
        path = dataset / file.path
        try:
            with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
                for number in range(parquet.num_row_groups):
                    yield widen_schema(parquet.read_row_group(number, use_threads=False), schema).cast(schema)
        except (pa.ArrowInvalid, OSError) as error:
            problem = f"{path} cannot be read: {error}"
            raise _refuse(dataset, problem, "restore the file, or take it away") from error


def _to_digest(rows: pa.Table) -> pa.Table:
    """The rows in types for which `digest_rows` is defined, with other values for other values."""
    return pa.Table.from_arrays([_to_digestible(column) for column in rows.columns], names=rows.column_names)


def _to_digestible(column: Any) -> Any:
    kind: pa.DataType = column.type
    if pa.types.is_dictionary(kind):
        return _to_digestible(column.cast(kind.value_type))
    if pa.types.is_uint64(kind):
        # Viewed, as a cast refuses numbers above those of int64.
        return pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    for is_kind, digestible in _DIGESTIBLE:
        if is_kind(kind):
            return column.cast(digestible)
    return column


_DIGESTIBLE: Final[tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...]] = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_time32, pa.int32()),
    (pa.types.is_time64, pa.int64()),
    (pa.types.is_duration, pa.int64()),
    (pa.types.is_null, pa.bool_()),
)


def _point_to_newest(dataset: Path) -> None:
    """Point the pointer at the newest generation, even if another process publishes one meanwhile."""
    storage = find_storage(dataset)
    pointer = _home(dataset) / POINTER
    while generations := _list_generations(dataset):
        newest = _home(dataset) / generations[-1]
        if storage.read_pointer(pointer) == newest:
            return
        storage.point(pointer, newest)


def _delete_stale(dataset: Path) -> None:
    storage = find_storage(dataset)
    home = _home(dataset)
    for name in storage.list_names(home):
        status = storage.get_status(home / name)
        if _STAGED.fullmatch(name) and status is not None and time.time() - status.modified_at > STALE_SECONDS:
            storage.delete_folder(home / name)
