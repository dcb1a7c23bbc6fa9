"""Topics, starting offsets, triggers, Limits, EventTime, Objectives."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import Enum
from itertools import accumulate
from typing import cast

from lockstep.errors import DeclarationError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_class, check_field_types


@dataclass(frozen=True)
class Earliest(Declaration):
    """From the first offset in Kafka; all sessions must start there, and a session without a snapshot is a fault.

    Topics that appear after the first batch start at offset 0: messages that retention has already deleted are an
    expired range.
    """


@dataclass(frozen=True)
class FirstSnapshot(Declaration):
    """From the first offset in Kafka; if retention has deleted earlier offsets, each session from its first snapshot.

    A snapshot in several messages must mark its first message by `Envelope.restarts_sequence`; otherwise the rest of a
    deleted snapshot is taken for a whole snapshot.
    """


@dataclass(frozen=True)
class Latest(Declaration):
    """From the end of the topics that exist when the stream first runs, each session from its first snapshot.

    Topics that appear later are read as `FirstSnapshot` reads them.
    """


@dataclass(frozen=True)
class FromTime(Declaration):
    """From the first message with at least this Kafka timestamp, each session from its first snapshot.

    Example: `FromTime(datetime(2026, 1, 31, tzinfo=UTC))`

    Attributes:
        time: The time, with its time zone.
    """

    time: datetime

    def __post_init__(self) -> None:
        """Refuse a time that means another moment on another machine."""
        time = cast("object", self.time)  # users need no checker
        if not isinstance(time, datetime) or time.tzinfo is None:
            problem = "is not a datetime with a time zone"
            raise DeclarationError("FromTime.time", self.time, problem, "datetime(2026, 1, 31, tzinfo=UTC)")


@dataclass(frozen=True)
class GroupOffsets(Declaration):
    """From the committed offsets of a consumer group, each session from its first snapshot.

    A partition without a committed offset is read as `FirstSnapshot` reads it. Committed offsets that Kafka no longer
    has are a fault.

    Example: `GroupOffsets("old-job")`

    Attributes:
        group: The consumer group.
    """

    group: str

    def __post_init__(self) -> None:
        """Refuse an empty name."""
        group = cast("object", self.group)  # users need no checker
        if not isinstance(group, str) or not group:
            raise DeclarationError(
                "GroupOffsets.group", self.group, "is not a consumer group", 'GroupOffsets("old-job")'
            )


StartingOffsets = Earliest | FirstSnapshot | Latest | FromTime | GroupOffsets
"""The offset from which a partition that the stream has never read is read."""


class NewTopics(Enum):
    """How topics that appear while a stream runs are read."""

    ADOPT = "adopt"
    """The run reads them within seconds."""
    RESTART = "restart"
    """The sensor starts a run that replaces the first."""


@dataclass(frozen=True, kw_only=True)
class Topics(Declaration):
    r"""The topics of a stream, by name.

    A partition that is read from offset 0 is whole: there a session without a snapshot is a fault. In every other
    partition that does not start with `Earliest`, the messages of a session up to its first snapshot are skipped and
    counted, and the message count of an END (`Envelope.count`) is not compared.

    Example: `Topics(pattern=r"sensors\..+")`

    Attributes:
        pattern: Regular expression (RE2) that a whole topic name must match: `sensors\..+`.
        exclude: Topics that also match this expression are excluded.
        inactive_after: A topic without messages for this long is drained, once all of them are read.
        new_topics: How topics that appear are read.
        start: Starting offsets of partitions that were never read; without effect on the others.
        start_by_topic: The same for the topics whose whole name matches a regular expression; the first match counts.
    """

    pattern: str
    exclude: str | None = None
    inactive_after: timedelta = timedelta(days=7)
    new_topics: NewTopics = NewTopics.ADOPT
    start: StartingOffsets = Earliest()
    start_by_topic: Mapping[str, StartingOffsets] = field(default_factory=dict[str, StartingOffsets])

    def __post_init__(self) -> None:
        """Check the expressions, that they match some topics and not all, and the starts."""
        _check_expression("Topics.pattern", self.pattern)
        if self.exclude is not None:
            _check_expression("Topics.exclude", self.exclude)
        for expression in self.start_by_topic:
            _check_expression("Topics.start_by_topic", expression)
        if not isinstance(self.new_topics, NewTopics):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
            raise DeclarationError("Topics.new_topics", self.new_topics, "is not one of NewTopics", "NewTopics.ADOPT")
        for start in (self.start, *self.start_by_topic.values()):
            check_class("Topics.start", start)
            if not isinstance(start, StartingOffsets):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need no checker
                raise DeclarationError("Topics.start", start, "is not a start", "for example FirstSnapshot()")
        if not _is_positive(self.inactive_after):
            raise DeclarationError(
                "Topics.inactive_after", self.inactive_after, "is not a positive timedelta", "timedelta(days=7)"
            )

    def find_start(self, topic: str) -> StartingOffsets:
        """Starting offsets of a partition of this topic that the stream has never read."""
        matches = (start for expression, start in self.start_by_topic.items() if _match_whole(expression, [topic]))
        return next(matches, self.start)

    def select(self, names: Iterable[str]) -> frozenset[str]:
        """The topics of the stream among all topics of a cluster; internal ones never match."""
        wanted = _match_whole(self.pattern, [name for name in names if not name.startswith("__")])
        if self.exclude:
            return wanted - _match_whole(self.exclude, wanted)
        return wanted


def _is_positive(duration: object) -> bool:
    return isinstance(duration, timedelta) and duration > timedelta(0)


def _match_whole(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Names that an expression matches as a whole, in time linear in their length.

    Raises:
        pyarrow.ArrowInvalid: RE2 has no such expression.
    """
    import pyarrow as pa  # heavy; a declaration loads it later in any case
    import pyarrow.compute as pc

    listed = list(names)
    encoded = [name.encode() for name in listed]
    ends = array("i", [0, *accumulate(map(len, encoded))])
    # `pa.array` would load pandas.
    texts = pa.StringArray.from_buffers(len(listed), pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(encoded)))
    # RE2 is linear: of a name that others choose, Python's own matching could take hours.
    matched = pc.match_substring_regex(texts, f"^(?:{expression})$").to_pylist()
    return frozenset(name for name, matches in zip(listed, matched, strict=True) if matches)


def _check_expression(field: str, value: str) -> None:
    import pyarrow as pa  # as above

    if not isinstance(cast("object", value), str):  # users need no checker
        problem = "is not a text: one regular expression matches all topics"
        raise DeclarationError(field, value, problem, r"for example r'sensors\..+', or r'sensors\..+|meters\..+'")
    try:
        re.compile(value)  # its errors name the place
        matches_nothing = _match_whole(value, [""])
    except re.error as error:
        raise DeclarationError(
            field, value, f"is not a regular expression: {error}", r"for example r'sensors\..+'"
        ) from error
    except pa.ArrowInvalid as error:
        step = "use neither lookaround nor references to groups; Topics.exclude leaves topics out"
        raise DeclarationError(field, value, f"is not a regular expression of RE2: {error}", step) from error
    if matches_nothing:
        raise DeclarationError(
            field, value, "matches the empty name, so it would match anything", r"use a prefix: r'sensors\..+'"
        )


@dataclass(frozen=True)
class Every(Declaration):
    """A batch at a fixed interval, endlessly; immediately when the previous batch left a backlog.

    Example: `Every(seconds=5)`

    Attributes:
        seconds: Time from the start of a batch to the start of the next; at least 0.05.
    """

    seconds: float = 5.0

    def __post_init__(self) -> None:
        """Refuse an interval that only burns CPU: an empty batch costs some 10 ms of Kafka requests."""
        if not _is_pace(self.seconds):
            raise DeclarationError("Every.seconds", self.seconds, "is not between 0.05 and 3600", "Every(seconds=5)")


def _is_pace(seconds: object) -> bool:
    return isinstance(seconds, (int, float)) and 0.05 <= seconds <= 3600  # noqa: PLR2004  # both are in the message


@dataclass(frozen=True)
class AvailableNow(Declaration):
    """Read up to the end offsets at the start of the run, in as many batches as needed, then end.

    The run waits at most two minutes for a partition without a leader: then it fails, and all other partitions are
    read.
    """


FILE_BATCHES_MAX = 20
"""Messages of a file, at most, in `Limits.batch_messages`: 4,000,000 by default fill 128 MB if a message has 32
bytes of Parquet. Without a bound rows that a fold emits seldom would make batches of all messages of an hour."""


@dataclass(frozen=True)
class FileSize(Declaration):
    """A batch when its rows fill a file, or when a message has waited long enough.

    Until then messages stay in Kafka. Files of a steady stream are within a fifth of the target, so they need no
    compaction.

    `lockstep commit STREAM` lets the writer commit what waits now, without a full file.

    A file takes at most 20 times `Limits.batch_messages`; raise that for larger files.

    Example: `FileSize("128 MB")`

    Attributes:
        target: Wanted size of a file: a number and kB, MB or GB (or KiB, MiB, GiB), "128 MB".
        at_most: Maximum wait of a message before its batch starts, while a run is active.
    """

    target: str
    at_most: timedelta = timedelta(minutes=60)

    def __post_init__(self) -> None:
        """Refuse an impossible size or time."""
        if _bytes(self.target) is None:
            problem = "is not a size from 64 kB to 8 GB"
            raise DeclarationError("FileSize.target", self.target, problem, 'a number and a unit: FileSize("128 MB")')
        if not _is_wait(self.at_most):
            problem = "is not a time from a second to a day"
            raise DeclarationError("FileSize.at_most", self.at_most, problem, "timedelta(minutes=60)")

    @property
    def target_bytes(self) -> int:
        """The target in bytes."""
        return _bytes(self.target) or 0


Trigger = Every | AvailableNow | FileSize
"""When the next batch starts, and whether the stream ever ends by itself."""


def _is_wait(at_most: object) -> bool:
    return isinstance(at_most, timedelta) and timedelta(seconds=1) <= at_most <= timedelta(days=1)


def find_longest_batch(trigger: Trigger, limits: Limits) -> timedelta:
    """How long a batch may take, by the deadline; with `FileSize` by so many deadlines as a file has full batches."""
    batches = FILE_BATCHES_MAX if isinstance(trigger, FileSize) else 1
    return batches * timedelta(seconds=limits.batch_seconds)


def find_longest_wait(trigger: Trigger) -> timedelta:
    """The longest time without a batch although messages wait."""
    if isinstance(trigger, FileSize):
        return trigger.at_most
    if isinstance(trigger, Every):
        return timedelta(seconds=trigger.seconds)
    return timedelta()


_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?) ?(?P<unit>[kKMG]i?)B")
_UNITS = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_LEAST_BYTES = 64_000
_MOST_BYTES = 8_000_000_000


def _bytes(size: object) -> int | None:
    if not isinstance(size, str):
        return None
    match = _SIZE.fullmatch(size)
    if match is None:
        return None
    number = int(float(match["number"]) * _UNITS[match["unit"]])
    return number if _LEAST_BYTES <= number <= _MOST_BYTES else None


CORE_MESSAGES = 100_000
"""Most messages of a batch for each core, by default."""
RANGE_MESSAGES = 200_000
"""Most messages of one partition, by default: one core folds them."""


@dataclass(frozen=True, kw_only=True)
class Limits(Declaration):
    """Bounds of a stream; exceeding a bound is a named error or an alarm.

    Example: `Limits(batch_messages=50_000)`

    Attributes:
        batch_messages: Most messages in one batch. By default 100,000 for each core, at least 200,000, and at most
            200,000 of one partition. With `FileSize` up to 20 times this number a file, or 4,000,000 messages by
            default. For large messages, as a batch must fit the memory of its tasks, and for large files.
        message_bytes: Largest message; larger messages are undecodable. For brokers that take messages of more than 8
            MiB.
        topics: Most topics of the stream. For families of more topics, such as one for each device.
        batch_seconds: Deadline of a batch, after which it is cancelled and planned again; the third time in a row the
            run fails. Not with `FileSize`. For folds that take longer than 1.5 ms a message.
        quarantine_share: Largest share of a batch that may be undecodable or refused by the transform; more stops the
            stream. For sources known to send more garbage.
        quarantine_burst: With fewer refused messages a batch is never stopped for its share. For small batches.
        stop_timeout_seconds: How long a stop waits for the running batch. For long batches, and for schedulers that
            kill a process sooner.
        handover_timeout_seconds: How long a new run waits for an unresponsive writer before it claims. For busy
            machines.
    """

    batch_messages: int | None = None
    message_bytes: int = 8 * 1024 * 1024
    topics: int = 10_000
    batch_seconds: float = 300.0
    quarantine_share: float = 0.1
    quarantine_burst: int = 100
    stop_timeout_seconds: float = 20.0
    handover_timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Refuse an empty bound."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.default is None:
                continue
            whole = each.default is None or isinstance(each.default, int)
            kinds = int if whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
                problem = f"is not a positive {'whole number' if whole else 'number'}"
                raise DeclarationError(f"Limits.{each.name}", value, problem, "leave it out for the default")
        if self.quarantine_share > 1:
            problem = "is more than the whole batch, so that no batch would stop the stream"
            raise DeclarationError("Limits.quarantine_share", self.quarantine_share, problem, "0.1 for ten percent")

    def find_batch_messages(self, cores: int) -> int:
        """Most messages in a batch, whose tasks have so many cores."""
        return self.batch_messages or max(RANGE_MESSAGES, cores * CORE_MESSAGES)

    @property
    def range_messages(self) -> int:
        """Most messages of one partition in a batch, and of a batch that measures sizes."""
        return self.batch_messages or RANGE_MESSAGES


@dataclass(frozen=True, kw_only=True)
class EventTime(Declaration):
    """Event time of a stream.

    Each partition has a watermark: the largest event time it has seen (or the result of `Transform.watermark`).
    Lateness, timers and the end of idle sessions are measured against it.

    Example: `EventTime(session_idle=timedelta(hours=1))`

    Attributes:
        max_skew: The watermark ignores event times further than this ahead of the planning time of their batch. For
            producers that announce the future, or with clocks that differ more.
        session_idle: A session without messages for this long, by the watermark, ends; None for never. For sessions
            that end without a message.
        idle_advance: After this long without messages, the clock advances the watermark of a partition, the same
            duration behind the clock; None to leave it unchanged. For timers and windows of partitions that fall
            silent.
    """

    max_skew: timedelta = timedelta(hours=1)
    session_idle: timedelta | None = None
    idle_advance: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse durations that are not positive."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.default is None:
                continue
            if not isinstance(value, timedelta) or value <= timedelta(0):
                problem = "is not a duration above zero"
                raise DeclarationError(f"EventTime.{each.name}", value, problem, "for example timedelta(minutes=5)")


@dataclass(frozen=True, kw_only=True)
class Objectives(Declaration):
    """When a stream raises an alarm (docs/health.md). The defaults suit most streams.

    Example: `Objectives(freshness=timedelta(minutes=5))`

    Attributes:
        freshness: Longest time that a message may wait to be committed, counted from its Kafka timestamp; None for no
            objective. For streams whose rows somebody waits for.
        headroom: Least time until retention may delete an unread message; of a short retention half of it. For teams
            that need more time to catch up.
        open_transaction: Longest time that a transaction may hide the messages behind it. For brokers with another
            `transaction.max.timeout.ms` than 15 minutes.
        quarantine_per_hour: Most messages that may enter quarantine within an hour. For sources known to send garbage.
        uncompacted: Longest time that a closed hour may wait for compaction, which runs every hour. For
            installations that compact less often.
        follower_lag: Longest time that a follower may leave batches unread; longer than its schedule waits. For
            followers that run less often than hourly.
    """

    freshness: timedelta | None = None
    headroom: timedelta = timedelta(hours=6)
    open_transaction: timedelta = timedelta(minutes=15)
    quarantine_per_hour: int = 100
    uncompacted: timedelta = timedelta(hours=6)
    follower_lag: timedelta = timedelta(hours=3)

    def __post_init__(self) -> None:
        """Refuse durations and numbers that are not positive."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(each.default, int):
                if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                    problem = "is not a positive whole number"
                    raise DeclarationError(f"Objectives.{each.name}", value, problem, "leave it out for the default")
            elif not _is_positive(value) and not (value is None and each.default is None):
                problem = "is not a positive timedelta"
                raise DeclarationError(f"Objectives.{each.name}", value, problem, "for example timedelta(minutes=5)")


class Codec(Enum):
    """Compression of Parquet files."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    GZIP = "gzip"
    LZ4 = "lz4"
    NONE = "none"


def _check_choice(name: str, value: object, example: Enum) -> None:
    """Refuse a value of an export that is not a member of its enumeration."""
    kind = type(example)
    if not isinstance(value, kind):
        raise DeclarationError(f"Export.{name}", value, f"is not one of {kind.__name__}", str(example))


class OnRewind(Enum):
    """When an hour is exported, and the effect of a later rewind or promotion that undoes some of its batches.

    | value | an hour is exported | a rewind or promotion that undoes batches of an exported hour |
    |---|---|---|
    | `WAIT` | `rewind_hours` after it was written | only to a savepoint or the start; then ends the dataset |
    | `REWRITE` | when it is closed and compacted | the next export withdraws the hour, then writes it again |
    | `REFUSE` | when it is closed and compacted | is refused |
    """

    WAIT = "wait"
    REWRITE = "rewrite"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Export(Declaration):
    """A plain Parquet dataset of the stream's closed hours, for readers without Delta.

    Each closed and compacted hour is written as the folder `commit_hour=YYYY-MM-DDTHH`, by default when no rewind can
    go back to it (docs/export.md).

    Example: `Export(partition_by=("_topic",), codec=Codec.SNAPPY, on_rewind=OnRewind.REWRITE)`

    Attributes:
        columns: Names of the columns, in order; empty for all.
        partition_by: Columns with few values by which an hour is divided further, such as `_topic`; texts, integers,
            booleans or dates. Folders have their names without leading underscores (`topic=...`).
        codec: Compression.
        row_group_rows: Rows of a row group, which the export holds in memory.
        folder: Absolute path of the dataset, or `s3://BUCKET/PREFIX`; empty for `<table_root>/<stream>/export`.
        on_rewind: When an hour is exported, and the effect of a later rewind on it.
    """

    columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    codec: Codec = Codec.ZSTD
    row_group_rows: int = 1_000_000
    folder: str = ""
    on_rewind: OnRewind = OnRewind.WAIT

    def __post_init__(self) -> None:
        """Refuse values that no hour could be written with."""
        for name in ("columns", "partition_by"):
            named = cast("object", getattr(self, name))  # users need no checker
            if isinstance(named, str) or not isinstance(named, Sequence):
                raise DeclarationError(f"Export.{name}", named, "is not a tuple of names", "for example ('_topic',)")
        _check_choice("codec", self.codec, Codec.ZSTD)
        _check_choice("on_rewind", self.on_rewind, OnRewind.REWRITE)
        rows = cast("object", self.row_group_rows)  # as above
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise DeclarationError("Export.row_group_rows", rows, "is not a positive whole number", "1_000_000")
        check_field_types(self)
        if self.folder and not self.folder.startswith(("/", "s3://")):
            raise DeclarationError(
                "Export.folder", self.folder, "is not an absolute path", "for example '/archive/orders'"
            )
        if len(set(self.partition_by)) < len(self.partition_by) or "commit_hour" in self.partition_by:
            problem = "names a column twice, or commit_hour, which every dataset is divided by"
            raise DeclarationError("Export.partition_by", self.partition_by, problem, "for example ('_topic',)")
        if len(set(self.columns)) < len(self.columns) or (self.columns and not {*self.columns} - {*self.partition_by}):
            problem = "names a column twice, or none but those of partition_by, which no file holds"
            raise DeclarationError("Export.columns", self.columns, problem, "for example ('price', 'quantity')")
