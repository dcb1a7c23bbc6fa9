"""Followers: the consumers of the committed rows of streams, such as derived tables and exports.

A feature adds a kind of follower in four steps:

1. A run ends with `write_position`: how far it has read, and of which history (`table/follower_positions.py`). It runs
   inside `record_failure`, so that a failed run is an alarm.
2. `Feature.followers` names a function that reads the status of the declared followers of this kind.
3. A follower keeps its rows after a rewind or an erasure, or its next run replaces them (`FollowerPosition.rebuilds`).
   One that keeps them names those rows as obstacles or notes of an erasure (`Feature.kept_rows`). One whose rows can
   be read back compares them with the table (`Feature.follower_proofs`).
4. Its asset is in `Feature.stream_assets` or `Feature.derived_assets`, its command in `Feature.commands`.

The core does the rest for all kinds: status, alarm, metrics, proof, the plans of rewind, promotion and erasure, and
the command that forgets a follower. Positions are enough for that: a small file for each follower.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec
from deltalake.exceptions import DeltaError

from lockstep.addresses import to_uri
from lockstep.declare.derived import Derived
from lockstep.declare.naming import NAME
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError, TableError
from lockstep.feature import load_parts
from lockstep.operations.plan_frame import Records
from lockstep.table.follower_positions import (
    FollowerName,
    FollowerPosition,
    FollowerPositions,
    Reads,
    SourceHistory,
    forget_position,
    read_follower_positions,
    read_position,
    write_position,
)
from lockstep.table.head import Head
from lockstep.table.live_files import TARGET_BYTES

DAMAGED = "its position cannot be read; its next run writes it again"
LOST = "its position is lost; its next run writes it again"


class FollowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a follower.

    Attributes:
        kind: Kind of follower: the name of its feature.
        name: Its name, unique in its kind.
        sources: Names of the streams that it reads.
        reads: Unit of `behind`.
        behind: Commits of its sources that it has not read, or hours that are ready for it; None before its first run.
        freshness_seconds: Age of the newest commit of its sources that it has read, of the oldest of several sources;
            None before its first run, or if the time of that commit is unknown.
        last_run: End of its last run (UTC); None before the first.
        next_run: Effect of its next run.
        problem: Reason to act for an operator; empty without any.
    """

    kind: str
    name: str
    sources: tuple[str, ...]
    reads: Reads = Reads.COMMITS
    behind: int | None = None
    freshness_seconds: float | None = None
    last_run: datetime | None = None
    next_run: str = ""
    problem: str = ""


class DeclaredFollowers(msgspec.Struct, frozen=True):
    """The declarations of an installation in which followers are declared.

    Attributes:
        streams: The streams.
        derived: The derived tables.
        root: The table root.
        target_bytes: Size of a compacted file.
    """

    streams: tuple[AnyStream, ...]
    derived: tuple[Derived, ...]
    root: Path
    target_bytes: int = TARGET_BYTES


class FollowerStanding(StrEnum):
    """How the rows of a follower relate to those that count in the table of a source."""

    FOLLOWS = "its rows count"
    REPLACED = "the table is not the one that it has read"
    UNDONE = "it holds rows of batches that were undone"
    ERASED = "it may hold rows of an erased session"


class FollowerLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a follower is behind one stream.

    Attributes:
        name: Kind and name.
        command: The command that runs it.
        unread_batches: Batches that are ready for it, and that it has not read.
        last_run_seconds: Age of its last run.
        freshness_seconds: Age of the newest commit that it has read; None if unknown.
        standing: Whether its rows count.
        failure: Class of the error of its last run; empty if it succeeded.
    """

    name: FollowerName
    command: str
    unread_batches: int
    last_run_seconds: float
    freshness_seconds: float | None = None
    standing: FollowerStanding = FollowerStanding.FOLLOWS
    failure: str = ""

    @property
    def is_behind(self) -> bool:
        """Whether its next run has something to do."""
        return self.unread_batches > 0 or self.standing is not FollowerStanding.FOLLOWS


class FollowerEffect(msgspec.Struct, frozen=True):
    """The effect of a change of the past of a stream on a follower.

    Attributes:
        kind: Kind of follower.
        name: Its name.
        effect: The effect on its rows.
        next_step: The command that runs it.
    """

    kind: str
    name: str
    effect: str
    next_step: str


class UnknownFollower(LockstepError):
    """No follower of this kind and name has a position.

    Attributes:
        name: Kind and name.
    """

    def __init__(self, name: FollowerName, known: Iterable[FollowerName]) -> None:
        listed = ", ".join(map(str, sorted(known))) or "none"
        super().__init__(f"no follower {name} has a position", next_step=f"followers with a position: {listed}")
        self.name = name


@contextmanager
def record_failure(root: Path, unread: FollowerPosition) -> Iterator[None]:
    """Record in the position of a follower that its run failed; the histories that it has read stay.

    Args:
        root: The table root.
        unread: Its position if it has none yet.
    """
    try:
        yield
    except Exception as error:
        with suppress(OSError, LockstepError):  # the error of the run prevails
            position = _read_or_none(root, unread.follower) or unread
            failed = msgspec.structs.replace(position, last_run=datetime.now(UTC), failure=type(error).__name__)
            write_position(root, failed)
        raise


@contextmanager
def name_remedy(table: Path, remake: str) -> Iterator[None]:
    """Name the remedy of a follower's table whose log cannot be read.

    Args:
        table: Folder of the table.
        remake: The command that makes the table again, and the rows that it makes.

    Raises:
        TableError: With the remedy.
    """
    try:
        yield
    except (TableError, DeltaError) as error:
        problem = f"the log of {to_uri(table)} cannot be read: {str(error).splitlines()[0]}"
        step = f"try again; if the error stays, delete that folder, and {remake}"
        raise TableError(problem, next_step=step) from error


def _read_or_none(root: Path, name: FollowerName) -> FollowerPosition | None:
    try:
        return read_position(root, name)
    except msgspec.DecodeError:
        return None


def judge_standing(read: SourceHistory, head: Head) -> FollowerStanding:
    """Compare the history that a follower has read with that of the table now. Pure."""
    if not read.table_id:
        return FollowerStanding.FOLLOWS
    # A claim beyond the table: an older copy of the table is in its place.
    is_ahead = read.generation > head.generation or (
        read.batch_generation == head.generation and read.batch > head.batch
    )
    if read.table_id != head.table_id or is_ahead:
        return FollowerStanding.REPLACED
    if read.batch > head.valid_batches.get(read.batch_generation, 0):
        return FollowerStanding.UNDONE
    erasure = 0 if head.erasure is None else head.erasure.batch
    return FollowerStanding.FOLLOWS if read.erasure == erasure else FollowerStanding.ERASED


def compute_lag(position: FollowerPosition, read: SourceHistory, head: Head, now: datetime) -> FollowerLag:
    """Compute how far a follower is behind one of its sources. Pure."""
    ready = max(0, head.rewind_floor - 1) if position.reads is Reads.HOURS else head.batch
    counts_up_to = min(read.last_complete, head.valid_batches.get(read.batch_generation, 0))
    unread = ready - counts_up_to if read.table_id == head.table_id else ready
    return FollowerLag(
        name=position.follower,
        command=position.command,
        unread_batches=max(0, unread),
        last_run_seconds=max(0.0, (now - position.last_run).total_seconds()),
        freshness_seconds=None if read.committed_at is None else max(0.0, now.timestamp() - read.committed_at),
        standing=judge_standing(read, head),
        failure=position.failure,
    )


def compute_lags(positions: FollowerPositions, head: Head, now: datetime) -> tuple[FollowerLag, ...]:
    """Compute how far the followers of a stream are behind it. Pure."""
    lags = list[FollowerLag]()
    for position in positions.list_of(head.stream):
        read = position.find_source(head.stream)
        lags += [] if read is None else [compute_lag(position, read, head, now)]
    return tuple(lags)


def list_effects(stream: str, root: Path, *, undone_after: int | None = None) -> tuple[FollowerEffect, ...]:
    """List the followers of a stream with the effect of a change of its past on each.

    Args:
        stream: Name of the stream.
        root: The table root.
        undone_after: The last batch that stays; None for an erasure.
    """
    found = read_follower_positions(root)
    effects = [
        FollowerEffect(each.kind, each.name, _describe_effect(each, stream, undone_after), each.command)
        for each in found.list_of(stream)
    ]
    unknown = "unknown: its position cannot be read, so it may follow this stream"
    step = "its next run writes the position"
    effects += [FollowerEffect(each.kind, each.name, unknown, step) for each in found.damaged]
    return tuple(effects)


def make_effect_records(effects: Iterable[FollowerEffect]) -> Records:
    """Return the table of effects for the description of a plan."""
    return Records.of("followers", effects, "kind name effect next_step")


def _describe_effect(position: FollowerPosition, stream: str, undone_after: int | None) -> str:
    if undone_after is None and position.reads is not Reads.COMMITS:
        return "keeps its rows: the erasure is refused if they are of the session"
    if position.rebuilds:
        return "its next run rebuilds it; until then it shows the previous rows"
    if undone_after is None:
        return "keeps its rows: the notes tell how those of the session are erased"
    read = position.find_source(stream)
    if read is not None and read.batch > undone_after:
        return f"holds rows of batches {undone_after + 1} to {read.batch}, which are undone: its next run is refused"
    return "keeps its rows: none of them is undone"


def read_followers(declared: DeclaredFollowers) -> tuple[FollowerStatus, ...]:
    """Read the status of the declared followers, and of all others that have a position; by kind and name."""
    positions = read_follower_positions(declared.root)
    positions_of = {each.follower: each for each in positions.read}
    statuses = dict[FollowerName, FollowerStatus]()
    for read in load_parts("followers"):
        for status in read(declared):
            name = FollowerName(status.kind, status.name)
            statuses[name] = _add_position(status, positions_of.get(name), is_damaged=name in positions.damaged)
    statuses |= {name: _show_undeclared(each) for name, each in positions_of.items() if name not in statuses}
    return tuple(statuses[name] for name in sorted(statuses))


def _add_position(status: FollowerStatus, known: FollowerPosition | None, *, is_damaged: bool) -> FollowerStatus:
    problem = DAMAGED if is_damaged else ""
    if known is not None and known.failure:
        problem = f"its last run failed ({known.failure}): {known.command} prints the reason"
    freshness_seconds = None
    last_run = None
    if known is not None:
        freshness_seconds = _find_freshness(known)
        last_run = known.last_run
    problems = [text for text in (status.problem, problem) if text]
    return msgspec.structs.replace(
        status, freshness_seconds=freshness_seconds, last_run=last_run, problem="; ".join(problems)
    )


def describe_lost_position(root: Path, name: FollowerName) -> str:
    """Describe the problem of a follower that has results and no position; empty if it has a position."""
    try:
        return LOST if read_position(root, name) is None else ""
    except msgspec.DecodeError:
        return ""  # which `read_followers` adds


def _find_freshness(position: FollowerPosition) -> float | None:
    """The age of the newest commit that was read, of the oldest of several sources; None if one is unknown."""
    times = [source.committed_at for source in position.sources]
    recorded = [moment for moment in times if moment is not None]
    if recorded and len(recorded) == len(times):
        return max(0.0, time.time() - min(recorded))
    return None


def _show_undeclared(position: FollowerPosition) -> FollowerStatus:
    name = position.follower
    return FollowerStatus(
        kind=position.kind,
        name=position.name,
        sources=tuple(source.stream for source in position.sources),
        reads=position.reads,
        last_run=position.last_run,
        problem=f"not declared: {make_forget_command(name)}",
    )


def make_forget_command(name: FollowerName) -> str:
    """The command that forgets a follower."""
    return f"lockstep forget {name}"


def forget_follower(root: Path, name: FollowerName) -> FollowerName:
    """Forget a follower: its position is deleted, its data stay. Its next run, if any, makes it known again.

    Raises:
        UnknownFollower: It has no position.
    """
    is_name = NAME.fullmatch(name.kind) and NAME.fullmatch(name.name)  # no path to another file
    if not is_name or not forget_position(root, name):
        positions = read_follower_positions(root)
        named = {each.follower for each in positions.read}
        raise UnknownFollower(name, named | set(positions.damaged))
    return name
