"""Runs derived tables: Structured Streaming from the tables of streams, rebuilt if its checkpoint no longer fits.

docs/decisions/0033 has the reasons, docs/derived.md the use. A checkpoint of Structured Streaming belongs to one
history of each source, which a note in its folder names; a rewind, a promotion or an erasure starts another history.
Then, or if the checkpoint is lost, a new checkpoint computes all rows into a separate table, and they replace those of
the derived table in one commit, which names that checkpoint.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from lockstep.addresses import to_uri
from lockstep.declare.derived import Derived
from lockstep.engine.driver.import_roots import find_module_root
from lockstep.errors import LockstepError, TableError
from lockstep.model.decoding import decode_json
from lockstep.operations.followers import name_remedy, record_failure
from lockstep.operations.plan_frame import Description, Labelled, Records, Unit
from lockstep.operations.stream_table import has_table, open_table
from lockstep.settings import Settings
from lockstep.spark.session import start_context
from lockstep.storage import find_storage, require_file_system
from lockstep.table import delta_log
from lockstep.table.follower_positions import (
    FollowerPosition,
    Reads,
    SourceHistory,
    find_commit_time,
    find_generation,
    make_history,
    make_unread_history,
    write_position,
)
from lockstep.table.head import Head
from lockstep.table.layout import DerivedFolders, StreamFolders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS_MAX = 3
"""A source that is rewound, or erased from, under a run makes another run necessary."""
ENTRIES_LOOKED_AT = 100
"""Entries of the table that may follow the newest of ours: an OPTIMIZE or a VACUUM of somebody."""
VACUUM_EVERY = 100
"""Commits of a derived table between two deletions of replaced files; about a day of quarters of an hour."""
SESSION = {
    # Each run leaves a small file or some; fifty of them become one.
    "spark.databricks.delta.autoCompact.enabled": "true",
    # Spark's own default, INT96, has no time zone and no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
FILES_MAX = 2**31 - 1
"""Files of a source that a batch reads: all. Delta's default, 1,000, would make several batches of a run."""
KIND = "derived"
NOTE = "sources.json"
SPARK_FOLDER = "spark"
BUILD_FOLDER = "build"
USER_METADATA = "lockstep.derived:"
"""Before the name of the checkpoint, in the user metadata of each commit to a derived table."""
_VERSION_LINE = re.compile(rb"v\d+\n")
_PLAN = re.compile(r"\n(?:\n|===)")
"""The point from which Spark's message has the plan of the query."""
_DAMAGED = re.compile(r"\[(CANNOT_LOAD_STATE_STORE|STATE_STORE_|STREAMING_CHECKPOINT_|STREAMING_STATEFUL_OPERATOR_)")
"""Error classes of Spark for a checkpoint whose state is lost or damaged, or does not fit the query any more."""


class RebuildCause(Enum):
    """Why a derived table is computed again from all rows of its sources."""

    NEW = "it has no table yet"
    CODE = "its declaration has changed"
    LOST = "its checkpoint is lost"
    DAMAGED = "its checkpoint is damaged"
    REPLACED = "a source is another table, or was restored from a copy"
    REWOUND = "a source was rewound, or a shadow promoted"
    ERASED = "a session was erased from a source"
    EXPIRED = "the log of a source no longer goes back to where it was read"
    ASKED = "it was asked for"


class DerivedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a derived table.

    Attributes:
        stream: Name of the stream.
        version: The newest version of its table; None if it has none yet.
        next_version: The version that the derived table reads next; None before the first run.
    """

    stream: str
    version: int | None
    next_version: int | None


class DerivedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run of a derived table.

    Attributes:
        name: Name of the derived table.
        folder: Its table.
        sources: Its sources.
        rebuild: Why it would be rebuilt; None if it continues from its checkpoint.
        is_due: Whether there is anything to do.
        watermark: The watermark after the last run (UTC); None without one.
    """

    name: str
    folder: str
    sources: tuple[DerivedSource, ...]
    rebuild: RebuildCause | None
    is_due: bool
    watermark: datetime | None

    def describe(self) -> Description:
        """Return its description."""
        facts = (Labelled("the next run", describe_next_run(self)), Labelled("watermark", self.watermark))
        sources = Records.of("sources", self.sources, "stream version next_version")
        return Description(title=f"{self.name}: derived table", facts=facts, records=(sources,))


def describe_next_run(plan: DerivedPlan) -> str:
    """Describe the next run of a derived table in some words."""
    if plan.rebuild is not None:
        return f"rebuilds it: {plan.rebuild.value}"
    if any(source.version is None for source in plan.sources):
        return "waits for a table"
    return "goes on" if plan.is_due else "has nothing to do"


class DerivedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run of a derived table.

    Attributes:
        name: Name of the derived table.
        folder: Its table.
        version: Version of its table; None if a source has no table yet.
        rows: Rows of its table.
        rows_before: Rows before the run.
        sources: Its sources, as read.
        rebuilt: Why it was rebuilt; empty if it continued from its checkpoint.
        watermark: The watermark (UTC); None without one.
    """

    name: str
    folder: str
    version: int | None
    rows: int
    rows_before: int
    sources: tuple[DerivedSource, ...]
    rebuilt: tuple[RebuildCause, ...]
    watermark: datetime | None

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("rows", self.rows),
            Labelled("rows added", self.rows - self.rows_before),
            Labelled("folder", self.folder, Unit.PATH),
            Labelled("table version", self.version),
            Labelled("watermark", self.watermark),
            Labelled("rebuilt because", "; ".join(cause.value for cause in self.rebuilt) or "not rebuilt"),
        )
        sources = Records.of("sources", self.sources, "stream version next_version")
        return Description(title=f"{self.name}: derived", facts=facts, records=(sources,))


class UnknownDerived(LockstepError):
    """No derived table of this name is declared.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(f"no derived table {name!r} is declared in assets/", next_step=f"derived tables: {names}")
        self.name = name


class DeriveInProgress(LockstepError):
    """Another run writes the derived table.

    Attributes:
        name: Name of the derived table.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"another run writes derived table {name}", next_step="wait for its end; nothing was changed")
        self.name = name


class DeriveFailed(LockstepError):
    """Spark could not run the query of a derived table; its rows are as they were, or as its last batch left them.

    Attributes:
        name: Name of the derived table.
    """

    def __init__(self, name: str, problem: str) -> None:
        step = f"correct the function; after another cause, again: lockstep derive {name}; or with --rebuild"
        super().__init__(f"derived table {name}: {problem}", next_step=step)
        self.name = name


class CheckpointNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note next to a checkpoint.

    Attributes:
        digest: Digest of the declaration.
        sources: The history of each source.
        deletes_replaced: Files with the rows that it replaced are to be deleted: a session was erased from a source.
    """

    digest: str
    sources: tuple[SourceHistory, ...]
    deletes_replaced: bool = False


class _Offset(msgspec.Struct):
    """Delta's offset of a source: the next version to read, or the snapshot that is read first."""

    reservoirId: str  # noqa: N815  # Delta's own names
    reservoirVersion: int  # noqa: N815


class _BatchLine(msgspec.Struct):
    batchWatermarkMs: int = 0  # noqa: N815  # Spark's own name


class _NewestBatch(NamedTuple):
    line: _BatchLine
    offsets: tuple[_Offset, ...]


class _QueryId(msgspec.Struct):
    id: str


class _Checkpoint:
    """A checkpoint of Structured Streaming, as stored in its folder. Its files are read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def spark(self) -> Path:
        return self.folder / SPARK_FOLDER

    @cached_property
    def note(self) -> CheckpointNote | None:
        return _read(self.folder / NOTE, CheckpointNote)

    @cached_property
    def query_id(self) -> str | None:
        query = _read(self.spark / "metadata", _QueryId)
        return None if query is None else query.id

    @cached_property
    def planned(self) -> int:
        """The newest batch whose offsets are written; -1 for none."""
        return self._find_newest("offsets")

    @cached_property
    def done(self) -> int:
        """The newest batch that is known to be in the table; -1 for none."""
        return self._find_newest("commits")

    def _find_newest(self, kind: str) -> int:
        names = find_storage(self.spark).list_names(self.spark / kind)
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    @cached_property
    def _newest(self) -> _NewestBatch | None:
        """The newest offsets; None if they are missing, torn or damaged."""
        lines = _read_log(self.spark / "offsets" / str(self.planned))
        if not lines:
            return None
        try:
            offsets = tuple(decode_json(line, _Offset) for line in lines[1:])
            return _NewestBatch(decode_json(lines[0], _BatchLine), offsets)
        except msgspec.DecodeError:
            return None

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The next version of each source, by its table id."""
        if self._newest is None:
            return {}
        versions = dict[str, int]()
        for offset in self._newest.offsets:
            # A query that reads a source twice has an offset for each of them.
            version = versions.get(offset.reservoirId, offset.reservoirVersion)
            versions[offset.reservoirId] = min(offset.reservoirVersion, version)
        return versions

    @cached_property
    def watermark(self) -> datetime | None:
        # Spark's watermark is 0 until a row has moved it.
        if self._newest is None or self._newest.line.batchWatermarkMs <= 0:
            return None
        return datetime.fromtimestamp(self._newest.line.batchWatermarkMs / 1000, UTC)

    def is_usable(self, table: Path) -> bool:
        """Whether its own files are whole, and it is as old as the table: what Spark would not notice.

        A checkpoint that was set back writes batches of numbers that the table has already, which Delta leaves out.
        """
        if self.query_id is None or (self.planned >= 0 and self._newest is None):
            return False
        if self.done >= 0 and not _read_log(self.spark / "commits" / str(self.done)):
            return False
        written = delta_log.open_delta_table(table).transaction_version(self.query_id)
        if written is None:
            written = -1
        # A batch is planned, then in the table, then done: a kill between two of them is usual.
        return self.done <= written <= self.planned


def _read_log(path: Path) -> list[bytes]:
    """The lines of an entry of Spark's logs after its version; empty if it is missing or torn."""
    try:
        content = find_storage(path).read(path)
    except FileNotFoundError:
        return []
    # A torn file ends anywhere; each line of a whole file is a JSON object.
    if not _VERSION_LINE.match(content) or not content.rstrip().endswith(b"}"):
        return []
    return content.splitlines()[1:]


class _Inputs(NamedTuple):
    """The inputs of a run: heads and versions of the sources, checkpoint in use, cause of a rebuild."""

    histories: tuple[SourceHistory, ...]
    checkpoint: _Checkpoint | None
    cause: RebuildCause | None

    @property
    def is_due(self) -> bool:
        """Whether a run would do anything: rows may be unread, or a batch is not finished."""
        checkpoint = self.checkpoint
        if self.cause is not None or checkpoint is None or checkpoint.planned > checkpoint.done:
            return True
        offsets = checkpoint.offsets
        return any(offsets.get(history.table_id, 0) <= history.version for history in self.histories)


def may_hold_erased(note: CheckpointNote | None, now: Sequence[SourceHistory]) -> bool:
    """Whether the rows of a derived table, or its replaced files, may be of an erased session. Pure.

    Asked at every rebuild: an erasure hides behind any other cause, such as a rewind of another source.

    Args:
        note: The note of its checkpoint; None if it is lost.
        now: The history of each source.
    """
    if note is None:
        return any(history.erasure for history in now)
    if note.deletes_replaced:
        return True
    sources = {history.stream: history for history in now}
    return any(_may_be_erased_from(noted, sources.get(noted.stream)) for noted in note.sources)


def _may_be_erased_from(noted: SourceHistory, now: SourceHistory | None) -> bool:
    """Whether a session may have been erased since from a source, or from the table that is now in its place."""
    if now is None:  # it is not a source any more: its erasures are not known
        return True
    return now.erasure != noted.erasure or (now.table_id != noted.table_id and now.erasure > 0)


def choose_derived(name: str | None, known: Mapping[str, Derived]) -> tuple[Derived, ...]:
    """A declared derived table, or all. Raises UnknownDerived."""
    if name is None:
        return tuple(known.values())
    if name not in known:
        raise UnknownDerived(name, known)
    return (known[name],)


def start_session(derived: Derived, settings: Settings) -> SparkSession:
    """The session of this process, started if there is none yet. Raises EnvironmentProblem as Spark's start does."""
    from pyspark.sql import SparkSession  # heavy; only runs pay for it

    roots = find_module_root(derived.derive.__module__)
    return SparkSession(start_context(settings.spark, "derived tables", import_roots=roots))


def plan_derived(derived: Derived, root: Path) -> DerivedPlan:
    """Plan a run; without Spark, and without changing anything.

    Args:
        derived: The declaration.
        root: The table root.

    Raises:
        TableError: The table of a source does not match its head.
    """
    require_file_system(root, "lock a file")
    folders = DerivedFolders(derived.name, root)
    inputs = _read_inputs(derived, root)
    watermark = None
    if inputs is not None and inputs.checkpoint is not None:
        watermark = inputs.checkpoint.watermark
    return DerivedPlan(
        name=derived.name,
        folder=to_uri(folders.table),
        sources=_list_sources(derived, inputs),
        rebuild=None if inputs is None else inputs.cause,
        is_due=inputs is not None and inputs.is_due,
        watermark=watermark,
    )


def run_derived(
    derived: Derived, root: Path, make_session: Callable[[], SparkSession], *, rebuild: bool = False
) -> DerivedRun:
    """Bring a derived table up to its sources.

    1. Lock the table; of two runs the second is refused.
    2. Check that its checkpoint fits the history of the sources, the declaration and the table.
    3. If so, continue from it; else compute all rows by a new checkpoint, and replace those of the table in one commit.
    4. Check again: a source that was rewound meanwhile makes a rebuild necessary.
    5. Delete checkpoints that are not in use, and files that were replaced long ago; write the position.

    Args:
        derived: The declaration.
        root: The table root.
        make_session: Starts Spark; called if there is anything to do.
        rebuild: Rebuild it, with any checkpoint.

    Raises:
        DeriveInProgress: Another run writes it.
        DeriveFailed: The query failed.
        TableError: The table of a source does not match its head; or sources changed under each attempt.
    """
    require_file_system(root, "lock a file")
    folders = DerivedFolders(derived.name, root)
    causes = list[RebuildCause]()
    with _lock(folders), record_failure(root, _make_position(derived, _list_unread(derived))):  # 1
        with name_remedy(folders.table, _describe_remake(derived)):
            size_before = _measure(folders.table)
        cause = RebuildCause.ASKED if rebuild else None
        for _ in range(ATTEMPTS_MAX):
            inputs = _read_inputs(derived, root)  # 2
            if inputs is None or not (cause or inputs.is_due):
                break
            cause = cause or inputs.cause
            if cause:
                causes.append(cause)
            try:
                _Attempt(derived, folders, make_session()).work(inputs, is_rebuild=cause is not None)  # 3
            except DeriveFailed as failed:
                cause = _find_remedy(derived, root, inputs, cause, failed)
            else:
                cause = None
                if not _has_changed(derived, root, inputs.histories):  # 4
                    break
        else:
            problem = f"the sources of {derived.name} changed under {ATTEMPTS_MAX} runs in a row"
            raise TableError(problem, next_step=f"lockstep derive {derived.name}")
        return _finish(derived, folders, size_before, causes)  # 5


def _make_position(derived: Derived, sources: tuple[SourceHistory, ...]) -> FollowerPosition:
    return FollowerPosition(
        kind=KIND,
        name=derived.name,
        command=f"lockstep derive {derived.name}",
        reads=Reads.COMMITS,
        rebuilds=True,
        sources=sources,
        last_run=datetime.now(UTC),
    )


def _list_read(root: Path, current: _Checkpoint, now: Sequence[SourceHistory]) -> tuple[SourceHistory, ...]:
    """The histories that a checkpoint has read: its note is behind its offsets after a kill between the two."""
    noted = () if current.note is None else current.note.sources
    if find_other_history(root, noted, now) is not None:
        return noted
    return _move_all_to_read(root, current, noted)


def _move_all_to_read(root: Path, current: _Checkpoint, noted: Sequence[SourceHistory]) -> tuple[SourceHistory, ...]:
    offsets = current.offsets
    return tuple(_move_to_read(root, history, offsets.get(history.table_id, 0) - 1) for history in noted)


def _list_unread(derived: Derived) -> tuple[SourceHistory, ...]:
    return tuple(make_unread_history(source.name) for source in derived.sources)


def _find_remedy(
    derived: Derived, root: Path, inputs: _Inputs, cause: RebuildCause | None, failed: DeriveFailed
) -> RebuildCause:
    """Why a rebuild may succeed after a run failed. Raises the failure without such a reason."""
    remedy = None
    if cause is None:
        now = _read_inputs(derived, root)
        if now is not None:
            remedy = now.cause
        # Spark finds damage that `is_usable` does not: files of the state, which only it can read.
        if remedy is None and _DAMAGED.search(str(failed)):
            remedy = RebuildCause.DAMAGED
    elif _has_changed(derived, root, inputs.histories):
        remedy = cause
    if remedy is None:
        raise failed
    return remedy


class _Attempt:
    """One attempt to bring a derived table up to its sources."""

    def __init__(self, derived: Derived, folders: DerivedFolders, session: SparkSession) -> None:
        for key, value in SESSION.items():
            session.conf.set(key, value)
        self._derived = derived
        self._folders = folders
        self._session = session

    def work(self, inputs: _Inputs, *, is_rebuild: bool) -> None:
        """Rebuild the table, or add the rows since the last run. Raises DeriveFailed."""
        checkpoint = inputs.checkpoint
        if is_rebuild or checkpoint is None or checkpoint.note is None:
            self._rebuild(inputs)
            return
        self._run_query(checkpoint, self._folders.table)
        self._note_read(checkpoint, checkpoint.note, inputs.histories)

    def _rebuild(self, inputs: _Inputs) -> None:
        """Compute all rows by a new checkpoint, and let them replace those of the table in one commit.

        1. Delete the rest of a killed rebuild.
        2. Note the history of the sources; compute the rows into a table in the folder of the checkpoint.
        3. Rows of a history that has ended meanwhile replace nothing.
        4. Replace the rows of the derived table, naming the last batch of the query: when it continues in the derived
           table, Delta leaves out the batches up to that batch.
        """
        _delete_others(self._folders)  # 1
        folder = self._folders.checkpoints / uuid.uuid4().hex
        replaced = None if inputs.checkpoint is None else inputs.checkpoint.note
        note = CheckpointNote(
            digest=self._derived.compute_digest(),
            sources=inputs.histories,
            deletes_replaced=may_hold_erased(replaced, inputs.histories),
        )
        # Each step opens the checkpoint again: it reads its files once, and the query writes them.
        _write_note(_Checkpoint(folder), note)  # 2
        result = self._run_query(_Checkpoint(folder), folder / BUILD_FOLDER)
        if self._note_read(_Checkpoint(folder), note, inputs.histories):  # 3
            self._replace_rows(_Checkpoint(folder), result)  # 4

    def _note_read(self, checkpoint: _Checkpoint, note: CheckpointNote, before: Sequence[SourceHistory]) -> bool:
        """Note up to which entries the sources were read; returns False if their history has ended meanwhile.

        A source continues while Spark starts: a copy from before the newest entry that was read is another history.
        """
        continues = not _has_changed(self._derived, self._folders.root, before)
        sources = tuple(before)
        if continues:
            # Opened again: this one has read its files before the query wrote them.
            sources = _move_all_to_read(self._folders.root, _Checkpoint(checkpoint.folder), sources)
        _write_note(checkpoint, msgspec.structs.replace(note, sources=sources))
        return continues

    def _replace_rows(self, done: _Checkpoint, result: DataFrame) -> None:
        built = done.folder / BUILD_FOLDER
        table = self._folders.table
        with _raise_as_failed(self._derived.name):
            if delta_log.has_log(built):
                rows = self._session.read.format("delta").load(find_storage(built).uri(built))
            else:  # the sources have no rows
                rows = self._session.createDataFrame([], result.schema)
            writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            if done.query_id is not None and done.done >= 0:
                # Delta leaves out the batches of this query up to this one when it continues in the derived table.
                writer = writer.option("txnAppId", done.query_id).option("txnVersion", str(done.done))
            if self._derived.partition_by:
                writer = writer.partitionBy(*self._derived.partition_by)
            writer.option("userMetadata", USER_METADATA + done.folder.name).save(find_storage(table).uri(table))

    def _run_query(self, checkpoint: _Checkpoint, target: Path) -> DataFrame:
        """Run the query up to the newest rows; returns the DataFrame of the function. Raises DeriveFailed."""
        with _raise_as_failed(self._derived.name):
            result = self._make_result()
            options = {
                "checkpointLocation": find_storage(checkpoint.spark).uri(checkpoint.spark),
                "mergeSchema": "true",
                "userMetadata": USER_METADATA + checkpoint.folder.name,
            }
            writer = result.writeStream.format("delta").queryName(self._derived.name).options(**options)
            if self._derived.partition_by:
                writer = writer.partitionBy(*self._derived.partition_by)
            writer = writer.outputMode(self._derived.output_mode.value).trigger(availableNow=True)
            writer.start(find_storage(target).uri(target)).awaitTermination()
            return result

    def _make_result(self) -> DataFrame:
        rows_of_sources = [self._read_source(source.name) for source in self._derived.sources]
        result = self._derived.derive(*rows_of_sources)
        if not getattr(result, "isStreaming", False):
            raise TypeError(f"{self._derived.derive.__qualname__} did not return a streaming DataFrame: {result!r}")
        return result

    def _read_source(self, stream: str) -> DataFrame:
        """The rows of a stream, past commits that change rows: after them their kinds are compared.

        One batch reads them all. Of a table that is read at first, files are in the order in which they were written,
        compacted ones last: in several batches, rows of the later files would be late for the watermark of the first.
        """
        table = StreamFolders(stream, self._folders.root).table
        watermark = self._derived.watermark
        reader = self._session.readStream.format("delta").option("maxFilesPerTrigger", FILES_MAX)
        reader = reader.option("skipChangeCommits", "true")
        rows = reader.load(find_storage(table).uri(table))
        if watermark is None:
            return rows
        # The text of a timedelta is not an interval that Spark reads.
        delay_us = watermark.delay // timedelta(microseconds=1)
        return rows.withWatermark(watermark.column, f"{delay_us} microseconds")


@contextmanager
def _raise_as_failed(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the function is the user's, and Spark raises errors of Python, of Java and its own
        raise DeriveFailed(name, _PLAN.split(str(error))[0]) from error


@contextmanager
def _lock(folders: DerivedFolders) -> Iterator[None]:
    storage = find_storage(folders.lock)
    storage.make_folder(folders.lock.parent)
    try:
        with storage.lock(folders.lock):
            yield
    except BlockingIOError:
        raise DeriveInProgress(folders.name) from None


def _read_inputs(derived: Derived, root: Path) -> _Inputs | None:
    """The inputs of a run, as they are now; None while a source has no table."""
    histories = list[SourceHistory]()
    heads = list[Head]()
    for source in derived.sources:
        folders = StreamFolders(source.name, root)
        if not has_table(folders):
            return None
        base = open_table(folders).base()
        heads.append(base.head)
        histories.append(make_history(folders, base))
    derived_folders = DerivedFolders(derived.name, root)
    if not delta_log.has_log(derived_folders.table):
        return _Inputs(tuple(histories), None, RebuildCause.NEW)
    current = _find_current(derived_folders.table)
    checkpoint = None if current is None else _Checkpoint(derived_folders.checkpoints / current)
    if checkpoint is None or checkpoint.note is None:
        return _Inputs(tuple(histories), None, RebuildCause.LOST)
    cause = find_other_history(root, checkpoint.note.sources, histories)
    if cause is None and checkpoint.note.digest != derived.compute_digest():
        cause = RebuildCause.CODE
    if cause is None and not checkpoint.is_usable(derived_folders.table):
        cause = RebuildCause.DAMAGED
    if cause is None:
        cause = _find_unreadable(root, checkpoint, histories, heads)
    return _Inputs(tuple(histories), checkpoint, cause)


def _find_unreadable(
    root: Path, checkpoint: _Checkpoint, histories: Sequence[SourceHistory], heads: Sequence[Head]
) -> RebuildCause | None:
    """Why the sources lack the versions that a checkpoint reads next; None if they have them."""
    if _is_ahead(root, checkpoint, histories):
        return RebuildCause.REPLACED
    if _has_expired(root, checkpoint, histories, heads):
        return RebuildCause.EXPIRED
    return None


def _move_to_read(root: Path, history: SourceHistory, version: int) -> SourceHistory:
    """The same history at the newest version that was read, if that is later."""
    if version < 0:
        return history
    entry = delta_log.read_entry(StreamFolders(history.stream, root).table, version)
    if entry is None or version <= history.version:
        return history
    batch = history.batch
    batch_generation = history.batch_generation
    # The entry of another tool, such as an OPTIMIZE, has no head and follows the same batch.
    if entry.head is not None:
        batch = entry.head.batch
        batch_generation = find_generation(entry.head, batch)
    return msgspec.structs.replace(
        history,
        version=version,
        token=entry.token or "",
        batch=batch,
        batch_generation=batch_generation,
        committed_at=find_commit_time(entry),
    )


def _is_ahead(root: Path, checkpoint: _Checkpoint, histories: Iterable[SourceHistory]) -> bool:
    """Whether a checkpoint has read versions that a source does not have; one that was written since has them."""
    for history in histories:
        read_version = checkpoint.offsets.get(history.table_id, 0) - 1
        if read_version <= history.version:
            continue
        if delta_log.read_entry(StreamFolders(history.stream, root).table, read_version) is None:
            return True
    return False


def find_other_history(root: Path, noted: Sequence[SourceHistory], now: Sequence[SourceHistory]) -> RebuildCause | None:
    """How the history of the sources differs from that of a checkpoint; None if it continues.

    A query passes over commits that change rows, so that their kinds decide: heads and kinds of all versions since are
    compared. A version whose entry is gone is not: see `_has_expired`.
    """
    if [history.stream for history in noted] != [history.stream for history in now]:
        return RebuildCause.CODE
    for before, after in zip(noted, now, strict=True):
        cause = _find_other_table(root, before, after)
        if cause is not None:
            return cause
    return None


def _find_other_table(root: Path, before: SourceHistory, after: SourceHistory) -> RebuildCause | None:
    """How the history of one source differs."""
    if before.erasure != after.erasure:
        return RebuildCause.ERASED
    if before.table_id != after.table_id or before.version > after.version:
        return RebuildCause.REPLACED
    if before.generation != after.generation:
        return RebuildCause.REWOUND
    table = StreamFolders(before.stream, root).table
    entry = delta_log.read_entry(table, before.version)
    # A table that was set back and written again has the same versions, with other tokens.
    if entry is not None and (entry.token or "") != before.token:
        return RebuildCause.REPLACED
    since = range(before.version + 1, after.version + 1)
    if delta_log.find_replaced_rows(table, since) is not None:
        return RebuildCause.REWOUND
    return None


def _has_changed(derived: Derived, root: Path, histories: Sequence[SourceHistory]) -> bool:
    """Whether a source was rewound, erased from or replaced since."""
    now = _read_inputs(derived, root)
    return now is None or find_other_history(root, histories, now.histories) is not None


def _has_expired(
    root: Path, checkpoint: _Checkpoint, histories: Sequence[SourceHistory], heads: Sequence[Head]
) -> bool:
    """Whether housekeeping may have deleted entries or files that are unread: those before the rewind floor."""
    for history, head in zip(histories, heads, strict=True):
        floor = delta_log.find_head_of_batch(StreamFolders(history.stream, root).table, head.rewind_floor)
        next_version = checkpoint.offsets.get(history.table_id)
        if floor is not None and next_version is not None and next_version < floor.batch_version:
            return True
    return False


def _find_current(table: Path) -> str | None:
    """The checkpoint that the newest commit of ours to a derived table names."""
    for entry in delta_log.open_delta_table(table).history(ENTRIES_LOOKED_AT):
        metadata = str(entry.get("userMetadata", ""))
        if metadata.startswith(USER_METADATA):
            return metadata.removeprefix(USER_METADATA)
    return None


def _delete_others(folders: DerivedFolders) -> _Checkpoint | None:
    """Delete the checkpoints that are not in use, and the build folder of the one in use; returns the latter."""
    storage = find_storage(folders.checkpoints)
    current = None
    if delta_log.has_log(folders.table):
        current = _find_current(folders.table)
    for name in storage.list_names(folders.checkpoints):
        if name != current:
            storage.delete_folder(folders.checkpoints / name)
    if current is None:
        return None
    storage.delete_folder(folders.checkpoints / current / BUILD_FOLDER)
    return _Checkpoint(folders.checkpoints / current)


def _finish(derived: Derived, folders: DerivedFolders, before: _Size, causes: Sequence[RebuildCause]) -> DerivedRun:
    current = _delete_others(folders)
    inputs = _read_inputs(derived, folders.root)
    after = _measure(folders.table)
    if current is not None:
        is_due = bool(causes) or after.version // VACUUM_EVERY > before.version // VACUUM_EVERY
        _delete_replaced(folders.table, current, is_due=is_due)
        if inputs is not None and current.note is not None:
            sources = _list_read(folders.root, current, inputs.histories)
            write_position(folders.root, _make_position(derived, sources))
    return DerivedRun(
        name=derived.name,
        folder=to_uri(folders.table),
        version=after.version if after.version >= 0 else None,
        rows=after.rows,
        rows_before=before.rows,
        sources=_list_sources(derived, inputs),
        rebuilt=tuple(causes),
        watermark=None if current is None else current.watermark,
    )


def _delete_replaced(table: Path, current: _Checkpoint, *, is_due: bool) -> None:
    """Delete files that no version of the last week has; after an erasure, those of any older version, at once."""
    note = current.note
    if note is not None and note.deletes_replaced:
        handle = delta_log.open_delta_table(table)
        handle.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        # Only now: after a kill before this line, the next run deletes them again.
        _write_note(current, msgspec.structs.replace(note, deletes_replaced=False))
    elif is_due:
        delta_log.open_delta_table(table).vacuum(dry_run=False, full=True)


def _list_sources(derived: Derived, inputs: _Inputs | None) -> tuple[DerivedSource, ...]:
    if inputs is None:
        return tuple(DerivedSource(stream=source.name, version=None, next_version=None) for source in derived.sources)
    offsets = {} if inputs.checkpoint is None else inputs.checkpoint.offsets
    sources: list[DerivedSource] = []
    for history in inputs.histories:
        next_version = offsets.get(history.table_id)
        sources.append(DerivedSource(stream=history.stream, version=history.version, next_version=next_version))
    return tuple(sources)


def _describe_remake(derived: Derived) -> str:
    return f"lockstep derive {derived.name} computes the rows that the sources still have; a copy may have others"


class _Size(NamedTuple):
    """Version and rows of a table; -1 and 0 without a table."""

    version: int
    rows: int


def _measure(table: Path) -> _Size:
    if not delta_log.has_log(table):
        return _Size(-1, 0)
    handle = delta_log.open_delta_table(table)
    counts = pa.table(handle.get_add_actions(flatten=True))["num_records"].to_pylist()
    return _Size(handle.version(), sum(count or 0 for count in counts))


S = TypeVar("S", bound=msgspec.Struct)


def _read(path: Path, kind: type[S]) -> S | None:
    """A small JSON file; None if it is missing or damaged."""
    try:
        return decode_json(find_storage(path).read(path), kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def _write_note(checkpoint: _Checkpoint, note: CheckpointNote) -> None:
    path = checkpoint.folder / NOTE
    find_storage(path).replace(path, msgspec.json.encode(note))
