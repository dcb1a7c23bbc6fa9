"""Plans the next batch and the effect of a restart. Reads only."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from lockstep.control.heartbeat import WriterState, find_writer
from lockstep.declare.stream import AnyStream, format_integrity, format_source
from lockstep.engine.driver.committer import check_table_present
from lockstep.engine.driver.lookup_pins import find_newest_versions
from lockstep.engine.driver.planner import BatchPlan, PlanInput, make_batch_identity, plan_batch
from lockstep.engine.driver.startup import check_state_types, check_topics_fit
from lockstep.engine.driver.subscription import Subscription
from lockstep.engine.executor.lookup_table import LookupUnusable
from lockstep.errors import LockstepError, StateError, StreamHeld, TableError
from lockstep.integrity.base import Halt, SessionStart
from lockstep.integrity.resume_options import make_resume_command
from lockstep.integrity.strict import Strict
from lockstep.kafka.admin import ClusterView, Topic
from lockstep.kafka.audit import audit_positions
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.finding import Finding
from lockstep.model.position import Position, TopicIdPartition
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.stream_handle import StreamHandle, make_cluster_admin
from lockstep.settings import Settings
from lockstep.table.commit import Writer
from lockstep.table.delta_log import open_delta_table
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.schema_evolution import SchemaChange, find_defaulted_columns, find_schema_changes

LOCAL_MASTER = re.compile(r"local\[(\d+)")
CORES_ELSEWHERE = 2
"""Maximum number of bins if the master's address does not have its cores."""


class PlannedRead(msgspec.Struct, frozen=True):
    """One range of the next batch: offsets [start, until) of a partition; an upper bound."""

    bin: int
    topic: str
    partition: int
    start: int
    until: int


class BatchPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The next batch as it would be planned now.

    Attributes:
        stream: Name of the stream.
        batch: Its number.
        commit_hour: Commit hour (UTC) of its rows.
        messages: Offsets in all ranges; at least as many as messages.
        backlog: Available messages that would wait for a later batch.
        ranges: Ranges, by bin.
        unavailable: "topic/partition" of those without a leader.
        findings: Findings of an audit; a class that promises completeness would halt.
        refused: Why a run would not start: the stream is halted or held, its table is gone, the declared types do not
            match those of table and state, or the declaration does not allow its topics.
        next_step: The command that ends the halt or the hold, or what to do about the table; empty otherwise.
    """

    stream: str
    batch: int
    commit_hour: str
    messages: int
    backlog: int
    ranges: tuple[PlannedRead, ...]
    unavailable: tuple[str, ...]
    findings: tuple[Finding, ...]
    refused: str = ""
    next_step: str = ""


class RestartedPartition(msgspec.Struct, frozen=True):
    """Effect of a new run on one partition.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        action: "add", "go on", "read again" (a retired topic), "wait", "keep aside" or "audit".
        start: First offset to be read, or to be kept.
        why: The reason.
    """

    topic: str
    partition: int
    action: str
    start: int
    why: str


class RestartPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of a new run.

    Attributes:
        stream: Name of the stream.
        takes_over: How it would find the previous writer.
        refused: Why it would not start at all; empty when it would.
        added: Topics that are read for the first time.
        kept_aside: Topics of the ledger that would not be read, under any topic id; their positions stay in it.
        partitions: Every partition, by topic and number.
        findings: Findings of the first audit; a class that promises completeness would halt.
        changes: Changes by the declaration: columns added, state migrated when touched, another integrity class.
        next_step: As in `BatchPreview`.
        lookups: The lookup tables, as declared, each with the version that the first batch would read.
    """

    stream: str
    takes_over: str
    refused: str
    added: tuple[str, ...]
    kept_aside: tuple[str, ...]
    partitions: tuple[RestartedPartition, ...]
    findings: tuple[Finding, ...]
    changes: tuple[str, ...] = ()
    next_step: str = ""
    lookups: tuple[str, ...] = ()


class _Seen(msgspec.Struct, frozen=True):
    """The ledger and Kafka, as a new run would see them; `topics` are those of the view, and the retired ones."""

    head: Head
    known: Mapping[TopicIdPartition, LedgerRow]
    view: ClusterView
    selected: frozenset[str]
    partitions: Subscription
    topics: Mapping[str, Topic]


class _Refusal(msgspec.Struct, frozen=True):
    """Why no run would start, and the remedy; empty if a run would start."""

    problem: str = ""
    next_step: str = ""


def plan_next_batch(stream: AnyStream, settings: Settings) -> BatchPreview:
    """Plan the next batch with the run's own planner, as the first of a new run: without a live run's measurements.

    Works before the first run too. A run with the file-size trigger plans when its files fill.

    Raises:
        KafkaError: Kafka does not answer.
        TableError: The table does not match its head.
    """
    seen = _see(stream, settings)
    head = seen.head
    partitions = seen.partitions
    cores = _cores(settings.spark.master)
    plan = plan_batch(
        PlanInput(
            batch=make_batch_identity(Writer(epoch=head.epoch, generation=head.generation), head),
            positions=tuple(partitions.positions.values()),
            ends=seen.view.ends,
            messages_max=stream.limits.find_batch_messages(cores),
            range_messages_max=stream.limits.range_messages,
            cores=cores,
        )
    )
    preview = _preview(stream, plan, partitions.positions, audit_positions(partitions.known, seen.view))
    refused = _find_refusal(stream, settings, head)
    wrong = _find_first(refused, _types(stream, settings, seen)[1], _fit(stream, seen))
    return msgspec.structs.replace(preview, refused=wrong.problem, next_step=wrong.next_step)


def plan_restart(stream: AnyStream, settings: Settings) -> RestartPreview:
    """The offsets from which a new run would read each partition, with reasons.

    Raises:
        KafkaError: Kafka does not answer.
        TableError: The table does not match its head.
    """
    seen = _see(stream, settings)
    partitions = seen.partitions
    begun = {row.topic for row in seen.known.values() if not row.retired}
    read = [_read(position, seen) for position in partitions.positions.values()]
    aside = [_aside(row, seen) for key, row in seen.known.items() if key not in partitions.positions]
    to_read = {item.topic for item in read}
    waiting = [_waiting(name, seen) for name in seen.view.topics.keys() - begun - to_read]
    listed = sorted([*read, *aside, *waiting], key=lambda item: (item.topic, item.partition))
    changes, wrong = _types(stream, settings, seen)
    lookups, unusable = _lookups(stream, settings)
    refused = _find_first(_find_refusal(stream, settings, seen.head), unusable, wrong, _fit(stream, seen))
    return RestartPreview(
        stream=stream.name,
        takes_over=_takes_over(StreamFolders(stream.name, settings.table_root), seen.head),
        refused=refused.problem,
        added=tuple(sorted({item.topic for item in read if item.action == "add"})),
        kept_aside=tuple(sorted({item.topic for item in aside} - to_read)),
        partitions=tuple(listed),
        findings=audit_positions(partitions.known, seen.view),
        changes=(*changes, *_describe_class_change(stream, seen.head)),
        next_step=refused.next_step,
        lookups=lookups,
    )


def _lookups(stream: AnyStream, settings: Settings) -> tuple[tuple[str, ...], _Refusal]:
    """The lookups with their newest versions, and the reason for a refusal."""
    try:
        pinned = find_newest_versions(stream, StreamFolders(stream.name, settings.table_root))
    except LookupUnusable as error:
        return tuple(map(format_source, stream.lookups)), _Refusal(error.problem, error.next_step)
    shown = zip(stream.lookups, pinned, strict=True)
    return tuple(f"{format_source(each)}: version {at.version}" for each, at in shown), _Refusal()


def _find_first(*refusals: _Refusal) -> _Refusal:
    """The first refusal with a problem, else an empty refusal."""
    return next((refusal for refusal in refusals if refusal.problem), _Refusal())


def _find_refusal(stream: AnyStream, settings: Settings, head: Head) -> _Refusal:
    if head.desired is Desired.HALTED:
        return _Refusal(f"halted: {head.reason}", make_resume_command(head.stream, head.findings))
    if head.desired is Desired.HELD:
        return _Refusal(f"held: {head.reason}", StreamHeld(head.stream, head.reason).next_step)
    folders = StreamFolders(stream.name, settings.table_root)
    group = ConsumerGroup(settings.kafka, stream.name)
    try:
        check_table_present(stream, folders, make_cluster_admin(settings.kafka), group)
    except TableError as error:
        return _Refusal(error.problem, error.next_step)
    return _Refusal()


def _fit(stream: AnyStream, seen: _Seen) -> _Refusal:
    """The reason for a refusal of the topics."""
    try:
        check_topics_fit(stream, seen.view.topics, seen.known.values())
    except LockstepError as error:
        return _Refusal(error.problem, error.next_step)
    return _Refusal()


def _types(stream: AnyStream, settings: Settings, seen: _Seen) -> tuple[tuple[str, ...], _Refusal]:
    """Changes of table and state by the declared types, and the reason for a refusal."""
    folders = StreamFolders(stream.name, settings.table_root)
    if seen.head.epoch == 0:
        return (), _Refusal()
    try:
        migrated = check_state_types(stream, folders, seen.known.values())
        row = stream.types.row
        changes = find_schema_changes(
            open_delta_table(folders.table), make_table_schema(row), defaulted=find_defaulted_columns(row)
        )
    except (StateError, TableError) as error:
        return (), _Refusal(error.problem, error.next_step)
    texts = [f"state, by migrate(): {difference}" for difference in migrated]
    if changes != SchemaChange():
        texts.insert(0, f"table: {changes}")
    return tuple(texts), _Refusal()


def _describe_class_change(stream: AnyStream, head: Head) -> tuple[str, ...]:
    """Another integrity class than that of the last run, and what becomes of sessions whose evidence it cannot use."""
    was = head.policies[-1].integrity if head.policies else ""
    declared = stream.integrity
    now = format_integrity(declared)
    if was in {"", now}:
        return ()
    if declared.session_start is SessionStart.FIRST_MESSAGE or declared.passes_unknown_sessions:
        then = "continue with their next message"
    elif isinstance(declared, Strict) and isinstance(declared.on_violation, Halt) and not declared.waits_for_snapshot:
        then = "halt the stream with their next message that is not a snapshot"
    else:
        then = "wait for their next snapshot"
    return (f"integrity class: {was}, now {now}: sessions whose evidence it cannot use {then}",)


def _see(stream: AnyStream, settings: Settings) -> _Seen:
    handle = StreamHandle(stream, settings)
    head = handle.head or Head(stream=stream.name, cluster_id=handle.cluster.cluster_id())
    selected = stream.topics.select(row.topic for row in handle.positions.values())
    names = (handle.selected | selected) - handle.retired
    view = handle.cluster.view(names)
    retired = handle.cluster.view(handle.selected & handle.retired)
    partitions = Subscription(handle.positions, view, selected, handle.joined)
    if revived := partitions.find_revived(retired):
        view = handle.cluster.view(names | revived)
        partitions.read_again(view)
        partitions.take_up(view, handle.joined)
    return _Seen(head, handle.positions, view, selected, partitions, {**retired.topics, **view.topics})


def _preview(
    stream: AnyStream, plan: BatchPlan, by_key: dict[TopicIdPartition, Position], findings: tuple[Finding, ...]
) -> BatchPreview:
    ranges = list[PlannedRead]()
    for number, group in enumerate(plan.bins):
        for item in sorted(group, key=lambda item: (item.position.topic, item.position.partition)):
            start = item.position
            ranges.append(PlannedRead(number, start.topic, start.partition, start.next_offset, item.until))
    return BatchPreview(
        stream=stream.name,
        batch=plan.batch.number,
        commit_hour=plan.batch.commit_hour,
        messages=plan.messages,
        backlog=plan.backlog,
        ranges=tuple(ranges),
        unavailable=tuple(f"{by_key[key].topic}/{key[1]}" for key in plan.unavailable),
        findings=findings,
    )


def _read(position: Position, seen: _Seen) -> RestartedPartition:
    """A partition that a new run would read."""
    if position.key in seen.known:
        row = seen.known[position.key]
        action = "go on"
        why = f"the position in the ledger (batch {row.batch})"
        if row.retired:
            action, why = _again(row, seen)
    else:
        start = "read from its first offset"
        if position.joined_at:
            start = "joined as Topics.start declares, each session from a snapshot"
        what = "re-created" if position.topic in seen.selected else "new"
        action = "add"
        why = f"{what}: {start}"
    return RestartedPartition(position.topic, position.partition, action, position.next_offset, why)


def _again(row: LedgerRow, seen: _Seen) -> tuple[str, str]:
    ends = seen.view.ends.get(row.key)
    if ends is not None and ends.high_watermark > row.until:
        return "read again", f"retired, and messages have arrived: offsets {row.until} to {ends.high_watermark - 1}"
    return "read again", "retired; the log of another partition of the topic, or its end, has changed since"


def _aside(row: LedgerRow, seen: _Seen) -> RestartedPartition:
    """A partition of the ledger that a new run would not read."""
    now = seen.topics.get(row.topic)
    if row.topic not in seen.selected:
        action = "keep aside"
        why = "the stream's pattern does not select it any more; its position stays in the ledger"
    elif row.retired and now is None:
        action = "keep aside"
        why = "retired, and not in Kafka any more: it stays retired"
    elif row.retired and now is not None and now.topic_id != row.topic_id:
        action = "keep aside"
        why = f"retired: its topic was deleted, and {now.topic_id} has the name now"
    elif row.retired:
        action = "keep aside"
        why = "retired, and no message has arrived since: the next message resumes it"
    else:
        action = "audit"
        why = "the topic is not in Kafka"
        if now is not None:
            why = f"the topic was re-created: topic id {now.topic_id}, not {row.topic_id}"
    return RestartedPartition(row.topic, row.partition, action, row.until, why)


def _waiting(topic: str, seen: _Seen) -> RestartedPartition:
    there = seen.view.topics[topic]
    without = [n for n in range(there.partitions) if (there.topic_id, n) not in seen.view.ends]
    why = "new, but this partition has no leader now: a later run takes the topic whole"
    return RestartedPartition(topic, without[0], "wait", 0, why)


def _takes_over(folders: StreamFolders, head: Head) -> str:
    if head.epoch == 0:
        return "no writer: it would be the first run"
    writer = find_writer(folders.control, head.epoch)
    if writer.is_alive:
        return f"epoch {head.epoch}, which is {writer.value} and would hand over at its batch boundary"
    if writer is WriterState.ENDED:
        return f"epoch {head.epoch}, which has ended"
    return f"epoch {head.epoch}, which is gone"


def _cores(master: str) -> int:
    local = LOCAL_MASTER.match(master)
    if local:
        return int(local[1])
    return CORES_ELSEWHERE
