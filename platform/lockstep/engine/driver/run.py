"""Runs a stream, from settings to an outcome."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec

from lockstep import native
from lockstep.control.heartbeat import run_heartbeat
from lockstep.declare.decoders.schema_registry import HttpRegistry, TokenClient, check_registry
from lockstep.declare.options import AvailableNow, FileSize, Trigger
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.committer import check_table_present
from lockstep.engine.driver.context import NO_REPORTS, RunContext, RunReports
from lockstep.engine.driver.kafka_patience import KafkaPatience
from lockstep.engine.driver.lookup_pins import find_lookup_tables
from lockstep.engine.driver.loop import RunOutcome, run_batches
from lockstep.engine.driver.shared_spark import StreamJobs
from lockstep.engine.driver.spark_job import SparkRunner, warm_up
from lockstep.engine.driver.startup import BY_HAND, Launch, NotWanted, StartCancelled, WriterStartup
from lockstep.engine.driver.topic_history import TopicWatch
from lockstep.engine.protocol import JobSpec
from lockstep.errors import Fenced, KafkaError, name_stream
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client, make_reader_configuration
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.settings import RegistrySettings, Settings
from lockstep.table import delta_log
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from pyspark import SparkContext

ROWS_A_FILE = 64
"""Bytes of rows in memory to bytes of Parquet, at most: equal texts and steps of numbers take nearly no room in it."""
LOG = logging.getLogger("lockstep")
T = TypeVar("T")


def require_registry(stream: AnyStream, settings: RegistrySettings) -> HttpRegistry | None:
    """The registry of the installation; None if it has none.

    Raises:
        SettingsError: The stream's decoder needs a registry, and none is configured.
    """
    registry = make_registry(settings)
    check_registry(stream.decoder, registry)
    return registry


def make_registry(settings: RegistrySettings) -> HttpRegistry | None:
    """The registry of the settings."""
    if not settings.url:
        return None
    return HttpRegistry(
        url=settings.url,
        user=settings.user,
        password_from=settings.secrets.get("password", ""),
        client=_make_client(settings),
        headers=tuple(settings.headers.items()),
        ca_file=settings.ca_file,
        timeout_seconds=settings.timeout_seconds,
    )


def _make_client(settings: RegistrySettings) -> TokenClient | None:
    if not settings.client_id:
        return None
    return TokenClient(settings.issuer_url, settings.client_id, settings.secrets["client_secret"], settings.scope)


def run_stream(
    stream: AnyStream,
    settings: Settings,
    *,
    spark: Callable[[], SparkContext],
    stop: threading.Event,
    trigger: Trigger | None = None,
    reports: RunReports = NO_REPORTS,
    launch: Launch = BY_HAND,
) -> RunOutcome:
    """Run a stream until its trigger ends, or until a stop, a handover or a newer writer ends it.

    After the check for a lost table the run has its own heartbeat file, so that observers see it before it claims.

    1. Read the cluster id; open or create the tables; refuse a lost table, a halted stream and unfit topics.
    2. Start Spark and wait for an executor while checking for the previous writer; a handover then costs one batch.
    3. Claim, and run batch after batch.

    Args:
        stream: The declaration.
        settings: Addresses of Kafka and the tables.
        spark: Starts Spark, or returns the running session.
        stop: Set it from any thread to end the run at the next batch boundary.
        trigger: Overrides the stream's own.
        reports: Receives the events of the run.
        launch: Who launched the run, why, and with which tuning.

    Raises:
        StreamHalted: The stream waits for an operator.
        StreamHeld: An operator holds the stream.
        IntegrityLost: The integrity class is violated; earlier messages and the halt are committed.
        KafkaError: Kafka refuses this user; or it does not answer a bounded run, or a first start, for two minutes.
        EnvironmentProblem: The cluster has no free executor.
        RegistryUnreachable: The schema registry does not answer.
        TableError: The table does not match its head.
    """
    trigger = trigger or stream.trigger
    folders = StreamFolders(stream.name, settings.table_root)
    admin, group = _make_clients(stream, settings)
    ask = _StartPatience(launch.tuning, trigger, folders, stop).ask
    watch = TopicWatch(admin, launch.tuning.end_look_seconds)
    try:
        ask(lambda: check_table_present(stream, folders, admin, group))  # before a heartbeat file makes a missing root
        with name_stream(stream.name), run_heartbeat(folders.control, launch.run_id), watch:
            job = make_job(stream, settings, folders, _tune(launch.tuning, trigger))
            cluster_id = ask(admin.cluster_id)
            startup = WriterStartup(stream, folders, cluster_id, launch=launch, never_ending=_is_never_ending(trigger))
            startup.check_topics(admin, watch.history)  # 1
            with _warm_jobs(spark, stream.name, job, launch.run_id, stop) as jobs:  # 2
                claimed = startup.claim(cancelled=stop.is_set)  # 3
                context = RunContext(
                    stream=stream,
                    trigger=trigger,
                    folders=folders,
                    admin=admin,
                    group=group,
                    runner=SparkRunner(jobs, job, seconds_max=_deadline(stream, trigger)),
                    cores=jobs.count_cores,
                    stop=stop,
                    reports=reports,
                    launch=launch,
                    history=watch.history,
                )
                return run_batches(context, claimed)
    except (Fenced, NotWanted, StartCancelled) as unclaimed:
        return _end_unclaimed(unclaimed)


def _make_clients(stream: AnyStream, settings: Settings) -> tuple[ClusterAdmin, ConsumerGroup]:
    admin = ClusterAdmin(make_admin_client(settings.kafka), settings.kafka.timeout_seconds)
    return admin, ConsumerGroup(settings.kafka, stream.name)


class _StartPatience:
    """Asks Kafka before the claim: refusals end the run at once, a stop ends the wait for the end of an outage.

    The first start of a stream does not wait without end: its address may be mistyped.
    """

    def __init__(self, tuning: Tuning, trigger: Trigger, folders: StreamFolders, stop: threading.Event) -> None:
        is_endless = _is_never_ending(trigger) and delta_log.has_log(folders.table)
        self._patience = KafkaPatience(tuning, is_endless=is_endless, gives_up=stop.is_set)
        self._stop = stop

    def ask(self, question: Callable[[], T]) -> T:
        try:
            return self._patience.ask(question, refusal_seconds=0)
        except KafkaError:
            if self._stop.is_set():
                raise StartCancelled from None
            raise


@cache
def report_slow_path() -> None:
    """Log once that the runs of this process cost more than they have to."""
    absence = native.describe_absence()
    if absence is not None:
        LOG.warning("lockstep-native: %s; next: %s", absence, native.INSTALL)


def _end_unclaimed(reason: Fenced | NotWanted | StartCancelled) -> RunOutcome:
    """The outcome of a run that does not write."""
    if isinstance(reason, Fenced):
        LOG.warning("%s", reason.problem)
        return RunOutcome.FENCED  # another run claimed at the same moment: that run writes, this run ends
    if isinstance(reason, StartCancelled):
        return RunOutcome.STOPPED
    LOG.warning("%s: this run was asked for before that, and ends", reason)
    return RunOutcome.NOT_WANTED


@contextmanager
def _warm_jobs(
    spark: Callable[[], SparkContext], stream: str, job: JobSpec, run_id: str, stop: threading.Event
) -> Iterator[StreamJobs]:
    """The jobs of the stream on this thread, with an executor that has loaded the stream."""
    report_slow_path()
    with StreamJobs(spark(), run_id).on_this_thread(stream) as jobs:
        warm_up(jobs.context, job.stream, job.tuning.executors_seconds_max, cancelled=stop.is_set)
        yield jobs


def _is_never_ending(trigger: Trigger) -> bool:
    return not isinstance(trigger, AvailableNow)


def _deadline(stream: AnyStream, trigger: Trigger) -> float | None:
    """Maximum duration of a batch; a batch that fills files takes as long as they need."""
    if isinstance(trigger, FileSize):
        return None
    return stream.limits.batch_seconds


def _tune(tuning: Tuning, trigger: Trigger) -> Tuning:
    """The tuning of tasks whose rows fill files."""
    if not isinstance(trigger, FileSize):
        return tuning
    return msgspec.structs.replace(tuning, rows_bytes=max(tuning.rows_bytes, ROWS_A_FILE * trigger.target_bytes))


def make_job(stream: AnyStream, settings: Settings, folders: StreamFolders, tuning: Tuning = DEFAULT_TUNING) -> JobSpec:
    """Settings that the tasks of a run share.

    Raises:
        SettingsError: The stream's decoder needs a schema registry, and none is set.
    """
    return JobSpec(
        stream=stream.shipped(),
        kafka=make_reader_configuration(settings.kafka),
        table=folders.table,
        quarantine=folders.quarantine,
        late=folders.late,
        archive=folders.archive,
        state=folders.state,
        local_root=settings.local_root / "state",
        registry=require_registry(stream, settings.registry),
        lookups=find_lookup_tables(stream, settings.table_root),
        tuning=tuning,
        worker_memory_bytes=settings.spark.worker_memory_bytes,
    )
