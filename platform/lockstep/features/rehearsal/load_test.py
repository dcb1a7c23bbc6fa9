"""The load test of a stream: its own declaration over copies of its messages, at multiples of the present rate.

The stream's table, topics and consumer group are never written. A load test creates objects with separate names: topics
that start with `PREFIX`, the consumer group and the tables of a stream `loadtest_<name>`, and a folder `.loadtest`.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from lockstep.declare.naming import NAME
from lockstep.declare.options import Every, Objectives, Topics, Trigger, find_longest_wait
from lockstep.declare.stream import AnyStream, format_source
from lockstep.engine.driver.run import require_registry
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.errors import KafkaError, LockstepError
from lockstep.features.localdev.processes import ignore_interrupts, interrupt_by_signals
from lockstep.features.rehearsal.copied_topics import (
    LeftOut,
    PartitionSample,
    Sampled,
    create_copies,
    delete_copies,
    find_leftovers,
    make_copies_pattern,
    name_copies,
    read_present_load,
    share_load,
    take_samples,
)
from lockstep.features.rehearsal.load_plan import (
    LOAD_TEST,
    Laps,
    PresentLoad,
    SamplePart,
    StagePlan,
    Sustainable,
    find_sustainable,
    make_obstacle,
    parse_rates,
    plan_stages,
    refuse_load_test,
    share_messages,
)
from lockstep.features.rehearsal.load_stage import Stage, StageResult, delete_stage_files
from lockstep.features.rehearsal.message_copy import choose_laps
from lockstep.features.rehearsal.paced_producer import ORDER, PartitionOrder, SendOrder
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import TopicIdPartition
from lockstep.operations.plan_frame import Obstacle, Refused
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import Settings
from lockstep.storage import find_storage, require_file_system

FOLDER = ".loadtest"
"""Below the table root and the local root: the same disks as the stream's own."""
STREAM_PREFIX = "loadtest_"
TRIGGER_SECONDS = 5.0
TRIGGER_SECONDS_MAX = 10.0
"""A stream with a rarer batch, or none by time, is tested with a batch every 5 s: others would end after the test."""
BATCHES_MIN = 4
"""Fewer batches prove nothing about a steady rate."""
DISK_FACTOR = 3
"""Disk of a stage by its message bytes: Kafka, table and state."""


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a load test.

    Attributes:
        stream: Name of the stream.
        topics: Topics copied.
        partitions: Partitions copied.
        present_per_second: Messages a second in the busiest minute of the examined time.
        mean_per_second: The same over all of it.
        present_seconds: The examined time.
        laps: How the sample is repeated.
        sample_messages: Messages of the sample.
        sample_bytes: Their bytes; the producer keeps them in memory.
        skipped: Messages read and not copied: of sessions without beginning, undecodable, or behind a fault.
        left_out: Partitions that could not be copied; the others take their load.
        trigger: The trigger of the test, as source text.
        trigger_replaced: Whether the stream itself has another trigger.
        stages: The stages.
        disk_bytes_max: Estimate of the disk of the largest stage: Kafka, table and state.
        scratch: Folder of the tables; deleted at the end.
    """

    stream: str
    topics: int
    partitions: int
    present_per_second: float
    mean_per_second: float
    present_seconds: float
    laps: Laps
    sample_messages: int
    sample_bytes: int
    skipped: int
    left_out: tuple[LeftOut, ...]
    trigger: str
    trigger_replaced: bool
    stages: tuple[StagePlan, ...]
    disk_bytes_max: int
    scratch: str


class LoadTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a load test.

    Attributes:
        plan: Its plan.
        stages: The stages, lowest rate first.
        sustainable: The highest sustainable rate and what limits it.
        cores: Cores of this machine.
        failure: The error that ended the test early, and topics that could not be deleted; empty otherwise.
    """

    plan: LoadPlan
    stages: tuple[StageResult, ...]
    sustainable: Sustainable
    cores: int
    failure: str = ""


@dataclass(frozen=True)
class LoadTest:
    """A prepared load test; nothing is created yet.

    Attributes:
        handle: The stream.
        plan: Its plan.
        sampled: The messages.
        partition_counts: Partitions of each real topic.
    """

    handle: StreamHandle
    plan: LoadPlan
    sampled: Sampled
    partition_counts: Mapping[str, int]

    @property
    def stream(self) -> AnyStream:
        """The declaration under test, over no topics yet; its lookups are the tables of the stream itself."""
        stream = make_tested(self.handle.stream)
        root = self.handle.settings.table_root
        lookups = tuple(replace(lookup, path=str(lookup.find_table(root))) for lookup in stream.lookups)
        return replace(stream, lookups=lookups)

    @property
    def scratch(self) -> Path:
        """The table root of the test."""
        return self.handle.settings.table_root / FOLDER / self.handle.stream.name

    def run(self, say: Callable[[str], None]) -> LoadTestResult:
        """Run all stages up to the first that is not sustained; deletes everything that it has created, for any end.

        Raises:
            Refused: Kafka forbids the topics, or another load test of the stream runs.
            LockstepError: A part of the first stage failed.
        """
        stages = list[StageResult]()
        created = set[str]()
        with hold_test_lock(self.handle), interrupt_by_signals():
            delete_folders(self.handle)  # of a killed test: its topics may be gone, with the Kafka that held them
            try:
                failed, failure = self._run_stages(stages, created, say)
            finally:
                if remains := self._delete_all(created):
                    say(remains)
        loads = [(stage.label, stage.load) for stage in stages]
        return LoadTestResult(
            plan=self.plan,
            stages=tuple(stages),
            sustainable=find_sustainable(loads, self.plan.present_per_second, failed=failed),
            cores=psutil.cpu_count() or 1,
            failure="; ".join(filter(None, (failure, remains))),
        )

    def _run_stages(self, stages: list[StageResult], created: set[str], say: Callable[[str], None]) -> tuple[str, str]:
        """Add the results up to the first stage that is not sustained; returns label and error of a failed stage."""
        for number, plan in enumerate(self.plan.stages, 1):
            try:
                stages.append(self._run_stage(number, plan, created, say))
            except LockstepError as error:
                if not stages:
                    raise
                return plan.label, f"{plan.label}: {error.problem}"
            # Higher rates would only show a longer backlog.
            if not stages[-1].load.is_sustained:
                break
        return "", ""

    def _run_stage(self, number: int, plan: StagePlan, created: set[str], say: Callable[[str], None]) -> StageResult:
        """One stage with separate topics, tables and files.

        1. Create the topics and the producer's order.
        2. Run it.
        3. Delete all of it.
        """
        handle = self.handle
        folder = self.scratch / f"stage-{number}"
        names = name_copies(handle.stream, number, {part.topic for part in self.sampled.samples})
        counts = {copy: self.partition_counts[topic] for topic, copy in names.items()}
        settings = handle.settings.model_copy(
            update={
                "table_root": folder / "tables",
                "local_root": handle.settings.local_root / FOLDER / handle.stream.name,
            }
        )
        stream = replace(self.stream, topics=Topics(pattern=make_copies_pattern(handle.stream, number)))
        say(f"{plan.label}: {len(names)} topics, {plan.messages:,} messages, {plan.size / 1e6:,.0f} MB")
        # Before the request: Kafka may create topics and not answer.
        created.update(counts)
        try:
            largest = max(map(_find_largest_size, self.sampled.samples))
            create_copies(
                handle.admin, handle.stream.name, counts, handle.timeout_seconds, message_bytes_max=largest
            )  # 1
        except Refused:
            created.difference_update(counts)  # those that exist are of another test
            raise
        try:
            folder.mkdir(parents=True)
            (folder / ORDER).write_bytes(msgspec.msgpack.encode(self._order(plan, names)))
            return Stage(plan, stream, settings, folder).run(say)  # 2
        finally:
            with ignore_interrupts():
                delete_stage_files(settings, folder)  # 3, first what needs no Kafka
                with suppress(KafkaError):  # the end of the test tries again
                    delete_copies(handle.admin, tuple(counts), handle.timeout_seconds)
                    created.difference_update(counts)

    def _order(self, plan: StagePlan, names: Mapping[str, str]) -> SendOrder:
        samples = self.sampled.samples
        counts = share_messages(plan.messages, [part.share for part in samples])
        return SendOrder(
            kafka=self.handle.settings.kafka.model_dump_json(),
            seconds=plan.seconds,
            renames_keys=self.plan.laps is Laps.NEW_KEYS,
            partitions=tuple(
                PartitionOrder(names[part.topic], part.partition, count, part.messages)
                for part, count in zip(samples, counts, strict=True)
            ),
        )

    def _delete_all(self, created: set[str]) -> str:
        """Delete folders, group, and topics that a stage could not delete, as while Kafka was away; names the rest.

        The figures of the stages stay: they are not measured again for a topic.
        """
        with ignore_interrupts():
            delete_folders(self.handle)
            try:
                delete_copies(self.handle.admin, tuple(created), self.handle.timeout_seconds)
                ConsumerGroup(self.handle.settings.kafka, make_tested(self.handle.stream).name).forget()
            except KafkaError as error:
                return f"{error.problem}; delete the rest: lockstep loadtest {self.handle.stream.name} --clean"
        return ""


def _find_largest_size(sample: PartitionSample) -> int:
    return max(message.size for message in sample.messages)


def prepare_load_test(
    handle: StreamHandle,
    declared: Sequence[AnyStream],
    *,
    rates: str,
    minutes: float,
    topics_max: int | None,
) -> LoadTest:
    """Measure the present load, read the sample, and plan the stages. Reads only.

    Args:
        handle: The stream.
        declared: All declared streams: none may read the copies.
        rates: As of `parse_rates`.
        minutes: Duration of the sending in each stage.
        topics_max: Only the topics with the most messages; None for all.

    Raises:
        Refused: It cannot be done; the error names the reason.
        NeedsFileSystem: The tables are in an object store.
        KafkaError: The cluster did not answer.
    """
    stream = handle.stream
    wanted = parse_rates(handle.stream.name, rates)
    require_file_system(handle.settings.table_root, "be watched for commits 200 times a second, as a load test does")
    _check_alone(handle)
    chosen = _choose_topics(handle, topics_max)
    present = read_present_load(handle.cluster, handle.view, chosen)
    shares = share_load(present, handle.view, chosen)
    if not shares:
        raise refuse_load_test(stream.name, "its topics hold no message to copy", f"lockstep topics {stream.name}")
    sampled = take_samples(handle, shares)
    laps = choose_laps(
        compile_stream(stream, require_registry(stream, handle.settings.registry)),
        [(part.topic, part.messages) for part in sampled.samples],
    )
    parts = [SamplePart(p.topic, p.partition, p.share, len(p.messages), p.size) for p in sampled.samples]
    stages = plan_stages(stream.name, wanted, present.per_second, parts, laps, 60 * minutes)
    plan = _describe(handle, present, sampled, laps, stages)
    obstacles = (
        *_find_short_stages(stream, stages),
        *_find_readers(stream, declared, [part.topic for part in parts], len(stages)),
        *_find_lack_of_disk(plan, handle.settings),
    )
    if obstacles:
        raise Refused(stream.name, LOAD_TEST, obstacles)
    return LoadTest(handle, plan, sampled, {name: handle.view.topics[name].partitions for name in chosen})


def _describe(
    handle: StreamHandle, present: PresentLoad, sampled: Sampled, laps: Laps, stages: tuple[StagePlan, ...]
) -> LoadPlan:
    trigger = choose_trigger(handle.stream.trigger)
    return LoadPlan(
        stream=handle.stream.name,
        topics=len({part.topic for part in sampled.samples}),
        partitions=len(sampled.samples),
        present_per_second=present.per_second,
        mean_per_second=present.mean_per_second,
        present_seconds=present.seconds,
        laps=laps,
        sample_messages=sum(len(part.messages) for part in sampled.samples),
        sample_bytes=sum(part.size for part in sampled.samples),
        skipped=sampled.skipped,
        left_out=sampled.left_out,
        trigger=format_source(trigger, with_defaults=True),
        trigger_replaced=trigger != handle.stream.trigger,
        stages=stages,
        disk_bytes_max=DISK_FACTOR * max(stage.size for stage in stages),
        scratch=str(handle.settings.table_root / FOLDER / handle.stream.name),
    )


def _check_alone(handle: StreamHandle) -> None:
    name = handle.stream.name
    if leftovers := find_leftovers(handle.cluster.topic_names(), name):
        problem = f"topics of another load test exist: {', '.join(leftovers)}"
        step = f"wait for its end; if none runs any more: lockstep loadtest {name} --clean"
        raise refuse_load_test(name, problem, step)


def make_tested(stream: AnyStream) -> AnyStream:
    """The declaration with another name and no alarms, read from the first offset on."""
    name = f"{STREAM_PREFIX}{stream.name}"
    shortened = NAME.match(name)
    return replace(
        stream,
        name=shortened[0] if shortened else name,
        trigger=choose_trigger(stream.trigger),
        objectives=Objectives(),
    )


def choose_trigger(trigger: Trigger) -> Trigger:
    """The trigger of the test: the stream's own, if it makes enough batches in a stage."""
    if isinstance(trigger, Every) and trigger.seconds <= TRIGGER_SECONDS_MAX:
        return trigger
    return Every(seconds=TRIGGER_SECONDS)


def _choose_topics(handle: StreamHandle, topics_max: int | None) -> frozenset[str]:
    """The topics with the most messages in Kafka."""
    view = handle.view
    sizes: dict[str, int] = {}
    for topic in view.topics.values():
        if topic.name not in handle.selected:
            continue
        ends = [view.ends.get(TopicIdPartition(topic.topic_id, number)) for number in range(topic.partitions)]
        sizes[topic.name] = sum(offsets.stable_end - offsets.start for offsets in ends if offsets is not None)
    # Then by name, so that two tests choose the same topics.
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    return frozenset(largest[:topics_max])


def _find_short_stages(stream: AnyStream, stages: Sequence[StagePlan]) -> Iterator[Obstacle]:
    """Stages with too few batches to judge them by."""
    needed = BATCHES_MIN * find_longest_wait(choose_trigger(stream.trigger)).total_seconds()
    for stage in stages:
        if stage.seconds < needed:
            problem = f"{stage.label} lasts {stage.seconds:.0f} s, less than {BATCHES_MIN} batches"
            yield make_obstacle(problem, f"--minutes {needed / 60:.1f} or more")


def _find_readers(
    stream: AnyStream, declared: Sequence[AnyStream], topics: Sequence[str], stages: int
) -> Iterator[Obstacle]:
    """Declared streams that would read the copies as their own, and a stream with the name of the test's."""
    if (name := make_tested(stream).name) in {other.name for other in declared}:
        yield make_obstacle(f"a stream {name} is declared", "rename that stream")
    for number in range(1, stages + 1):
        copies = name_copies(stream, number, topics).values()
        for other in declared:
            if read := other.topics.select(copies):
                problem = f"stream {other.name} would read its topics, such as {min(read)}"
                step = f'exclude them: Topics(pattern=..., exclude=r"lockstep\\.loadtest\\..+") in stream {other.name}'
                yield make_obstacle(problem, step)


def _find_lack_of_disk(plan: LoadPlan, settings: Settings) -> Iterator[Obstacle]:
    folders = (settings.table_root, *settings.table_root.parents)
    root = next(folder for folder in folders if find_storage(folder).exists(folder))
    free = psutil.disk_usage(str(root)).free
    if free < plan.disk_bytes_max:
        problem = f"it may need {plan.disk_bytes_max / 1e9:.1f} GB of disk, and {root} has {free / 1e9:.1f} GB"
        yield make_obstacle(problem, "fewer --minutes, fewer --topics or a lower --rate")


def delete_leftovers(handle: StreamHandle) -> tuple[str, ...]:
    """Delete topics, consumer group and folders of load tests of a stream; returns the names of the topics.

    Raises:
        KafkaError: Kafka did not delete them.
    """
    delete_folders(handle)
    topics = find_leftovers(handle.cluster.topic_names(), handle.stream.name)
    delete_copies(handle.admin, topics, handle.timeout_seconds)
    ConsumerGroup(handle.settings.kafka, make_tested(handle.stream).name).forget()
    return topics


def delete_folders(handle: StreamHandle) -> None:
    """Delete the scratch folders of load tests of a stream; the folder that all streams share only while it is empty.

    A test of another stream may start in it at any moment.
    """
    for root in (handle.settings.table_root, handle.settings.local_root):
        find_storage(root).delete_folder(root / FOLDER / handle.stream.name)
        find_storage(root).delete_empty_folder(root / FOLDER)


@contextmanager
def hold_test_lock(handle: StreamHandle) -> Iterator[None]:
    """Exclude a second load test of the stream on this machine.

    Raises:
        Refused: One runs.
    """
    folder = handle.settings.local_root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{handle.stream.name}.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            name = handle.stream.name
            raise refuse_load_test(name, "another load test runs on this machine", "wait for its end") from None
        try:
            yield
        finally:
            # While the lock is held: a later test opens a new file.
            path.unlink(missing_ok=True)
            with suppress(OSError):  # tests of other streams
                folder.rmdir()
