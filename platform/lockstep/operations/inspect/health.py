"""Reads the health of a stream: its table, its heartbeat and Kafka, in one snapshot. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError

from lockstep.control.heartbeat import find_heartbeat_time, read_heartbeat
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError, TableError
from lockstep.feature import load_parts
from lockstep.foreign_errors import explain_error, explain_errors
from lockstep.integrity.resume_options import make_resume_command
from lockstep.kafka.open_transaction import OpenTransaction
from lockstep.kafka.progress import compute_freshness_seconds
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.operations.alarms import (
    NO_DEBT,
    Alarm,
    AlarmKind,
    CompactionDebt,
    HealthFacts,
    TopicHalt,
    judge_health,
)
from lockstep.operations.followers import compute_lags
from lockstep.operations.inspect.partition_figures import PartitionFigures, read_figures, read_first_timestamps
from lockstep.operations.stream_handle import StreamHandle
from lockstep.table import commit_kinds, delta_log
from lockstep.table.follower_positions import read_follower_positions
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders, require_root
from lockstep.table.ledger import LedgerRow
from lockstep.table.live_files import TARGET_BYTES

GROWTH_SECONDS = 3_600.0
"""What entered quarantine within this time counts as its growth."""
UNREADABLE_ERRORS = (LockstepError, DeltaError, OSError)
"""Errors from reading a table with a damaged part, or on a failing disk."""
CLAIMS_LOOKED_AT = 50
"""Log entries after the last batch that may be the claim: further ones are compactions and desired states."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a stream.

    Attributes:
        facts: The known facts.
        alarms: The alarms, errors first.
        figures: Lag and headroom of all partitions selected or subscribed, by (topic id, partition).
    """

    facts: HealthFacts
    alarms: tuple[Alarm, ...]
    figures: Mapping[TopicIdPartition, PartitionFigures]

    @property
    def unknown(self) -> tuple[AlarmKind, ...]:
        """Alarms that can neither be raised nor ruled out now."""
        return self.facts.unknown


class KafkaFacts(msgspec.Struct, frozen=True):
    """The state of a stream in Kafka.

    Attributes:
        figures: Figures by (topic id, partition).
        of_stream: Those of the topics that the stream reads or will read.
        unavailable: Partitions of these topics without a leader.
        transactions: Open transactions in these topics.
        problem: Reason why Kafka did not answer; empty when it did.
    """

    figures: Mapping[TopicIdPartition, PartitionFigures] = {}
    of_stream: tuple[PartitionFigures, ...] = ()
    unavailable: tuple[TopicNamePartition, ...] = ()
    transactions: tuple[OpenTransaction, ...] = ()
    problem: str = ""


def read_health(handle: StreamHandle) -> Health:
    """Read the health of a stream: the table, a heartbeat and Kafka, without waiting for changes.

    A table that cannot be read and a Kafka that does not answer are facts, not errors.
    """
    try:
        with explain_errors(handle.stream.name):
            if handle.head is not None:
                return read_known_health(handle, handle.head)
            require_root(handle.folders.root)
    except UNREADABLE_ERRORS as error:
        return make_unreadable(handle.stream, *describe_unreadable(error, handle.stream.name))
    return Health(facts=HealthFacts(stream=handle.stream.name, desired=None), alarms=(), figures={})


def describe_unreadable(error: Exception, stream: str) -> tuple[str, str]:
    """Problem and next step of an error from reading the table of a stream."""
    if (explained := explain_error(error, stream)) is not None:
        return explained.problem, explained.next_step
    return next(iter(str(error).splitlines()), type(error).__name__), "lockstep doctor"


def make_unreadable(stream: AnyStream, problem: str, next_step: str) -> Health:
    """The health of a stream whose table cannot be read."""
    facts = HealthFacts(stream=stream.name, desired=None, reason=problem, next_step=next_step)
    return Health(facts=facts, alarms=judge_health(facts, stream), figures={})


def read_known_health(handle: StreamHandle, head: Head) -> Health:
    """The health of a stream with a table.

    Raises:
        TableError: The table or its side tables cannot be read.
    """
    cluster = _read_kafka(handle)
    try:
        facts = _facts(handle, head, cluster)
    except DeltaError as error:
        problem = f"{handle.folders.table.parent}: {str(error).splitlines()[0]}"
        raise TableError(problem, next_step=f"lockstep repair {head.stream}") from error
    return Health(facts=facts, alarms=judge_health(facts, handle.stream), figures=cluster.figures)


def _find_next_step(head: Head) -> str:
    """The command after a halt; alarms are sent to others, so it names no session."""
    if not head.all_findings:
        return ""
    return make_resume_command(head.stream, head.all_findings, hides_sessions=True)


def _facts(handle: StreamHandle, head: Head, cluster: KafkaFacts) -> HealthFacts:
    folders = handle.folders
    now = time.time()
    last = read_heartbeat(folders.control, head.epoch)
    beaten_at = find_heartbeat_time(folders.control, head.epoch)
    quarantined, lately = _read_quarantine(folders, head, now)
    dropped = 0 if head.quarantine_retention is None else head.quarantine_retention.quarantined
    committed_at = max((row.committed_at.timestamp() for row in handle.positions.values()), default=None)
    positions = read_follower_positions(folders.root)
    moments = [at for at in (committed_at, _find_claim_time(folders, head)) if at is not None]
    return HealthFacts(
        stream=handle.stream.name,
        desired=head.desired,
        reason=head.reason,
        next_step=_find_next_step(head),
        halted_topics=tuple(
            TopicHalt(each.topic, str(each.findings[0].without_session())) for each in head.halted_topics
        ),
        epoch=head.epoch,
        batch=head.batch,
        writer=None if last is None else last.phase,
        writer_seconds=None if beaten_at is None else max(0.0, now - beaten_at),
        progress_seconds=max(0.0, now - max(moments)) if moments else None,
        commit_ahead_seconds=0.0 if committed_at is None else max(0.0, committed_at - now),
        freshness_seconds=find_freshness_seconds(handle.subscribed, now),
        absurd_timestamps=sum(row.absurd_timestamps for row in handle.subscribed),
        absent_removals=sum(row.absent_removals for row in handle.subscribed),
        positions={key: row.until for key, row in handle.positions.items()},
        kafka=cluster.problem,
        partitions=cluster.of_stream,
        unavailable=cluster.unavailable,
        transactions=cluster.transactions,
        quarantined_messages=quarantined,
        quarantined_last_hour=lately,
        quarantined_ever=quarantined + dropped,
        debt=read_debt(folders, head, now, handle.settings.target_file_bytes),
        lost=head.lost,
        followers=compute_lags(positions, head, datetime.fromtimestamp(now, UTC)),
        damaged_followers=positions.damaged,
    )


def find_freshness_seconds(rows: Iterable[LedgerRow], now: float) -> float | None:
    """Age of the newest committed message of these partitions; None without one. The time is in seconds since 1970."""
    newest = (row.newest_timestamp for row in rows)
    newest_ms = (None if moment is None else int(moment.timestamp() * 1000) for moment in newest)
    return compute_freshness_seconds(newest_ms, int(now * 1000))


def _read_kafka(handle: StreamHandle) -> KafkaFacts:
    try:
        figures = read_figures(handle)
        view = handle.view
        read = {key: each for key, each in figures.items() if each.topic in handle.selected}
        return KafkaFacts(
            figures=figures,
            of_stream=tuple(read.values()),
            unavailable=tuple(place for place in view.unavailable if place[0] in handle.selected - handle.retired),
            transactions=_read_transactions(handle, read),
        )
    except TableError:
        raise
    except LockstepError as error:  # no answer, or a secret that is not there
        return KafkaFacts(problem=error.problem)


def _read_transactions(
    handle: StreamHandle, figures: Mapping[TopicIdPartition, PartitionFigures]
) -> tuple[OpenTransaction, ...]:
    """Open transactions, as old as their first message: it is at the last stable offset."""
    ends = handle.view.ends
    hidden = {key: ends[key].high_watermark - ends[key].stable_end for key in figures}
    places = dict[TopicIdPartition, TopicNamePartition]()
    for key, offsets in hidden.items():
        if offsets > 0:
            places[key] = TopicNamePartition(figures[key].topic, key.partition)
    # The last stable offset is the first message of the oldest open transaction.
    first_offsets = {place: ends[key].stable_end for key, place in places.items()}
    begun_ms = read_first_timestamps(handle, first_offsets)
    now_ms = time.time_ns() // 1_000_000
    transactions = list[OpenTransaction]()
    for key, place in places.items():
        if place in begun_ms:
            age_seconds = max(0, now_ms - begun_ms[place]) / 1000
            end = ends[key].high_watermark
            transactions.append(OpenTransaction(*place, first_offsets[place], end, age_seconds))
    return tuple(transactions)


def _find_claim_time(folders: StreamFolders, head: Head) -> float | None:
    """When the writer of the head's epoch claimed the table, if no batch followed."""
    versions = [version for version in delta_log.list_versions(folders.table) if version > head.batch_version]
    for version in reversed(versions[-CLAIMS_LOOKED_AT:]):
        if delta_log.is_of_kind(folders.table, version, commit_kinds.CLAIM.name):
            return delta_log.find_entry_time(folders.table, version)
    return None


def _read_quarantine(folders: StreamFolders, head: Head, now: float) -> tuple[int, int]:
    """Messages in quarantine, and those of the last hour, from its log: no file is opened.

    Messages that a retention is about to remove do not count any more.
    """
    if head.quarantine is None or not delta_log.has_log(folders.quarantine):
        return 0, 0
    table = delta_log.open_delta_table(folders.quarantine)
    names = ["num_records", "modification_time", "min.generation", "min.batch", "max.batch"]
    actions = pa.table(table.get_add_actions(flatten=True))
    valid = head.valid_batches
    listed = actions.select([name for name in names if name in actions.column_names]).to_pylist()
    since_ms = (now - GROWTH_SECONDS) * 1000
    messages = 0
    recent = 0
    for file in listed:
        is_undone = file["min.batch"] > valid.get(file["min.generation"], 0)
        if is_undone or file["max.batch"] <= head.quarantine_dropped_up_to:
            continue
        rows = int(file["num_records"] or 0)
        messages += rows
        if int(file["modification_time"]) >= since_ms:
            recent += rows
    return messages, recent


def read_debt(folders: StreamFolders, head: Head, now: float, target_bytes: int = TARGET_BYTES) -> CompactionDebt:
    """The files that wait for compaction, from the log of the table; none if nothing compacts."""
    debts = (measure(folders, head, now, target_bytes) for measure in load_parts("compaction_debt"))
    return next(debts, NO_DEBT)
