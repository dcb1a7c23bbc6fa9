"""Prometheus exporter: the health of all declared streams, read when it is scraped.

Series are bounded: some 50 for each stream, and one for each topic that it reads. Partitions have none unless they are
asked for: 1,000 topics are 1,000 series, not tens of thousands. An unknown value is absent, never zero. docs/health.md
lists the metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec
from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from lockstep.addresses import is_loopback_name
from lockstep.control.live_report import LiveRates, compute_rates, read_live_report
from lockstep.declare.stream import AnyStream
from lockstep.errors import EnvironmentProblem
from lockstep.feature import load_parts
from lockstep.model.position import TopicIdPartition
from lockstep.operations.alarms import AlarmKind, AlarmSeverity, HealthFacts
from lockstep.operations.inspect.health import Health, describe_unreadable, make_unreadable, read_health
from lockstep.operations.stream_gauges import StreamGauge
from lockstep.operations.stream_handle import SharedCluster, StreamHandle
from lockstep.settings import Settings
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

METRICS_PORT = 9464
"""The usual port of an exporter without a reserved port (OpenTelemetry's)."""
CACHE_SECONDS = 10.0
"""Scrapes within this time get the same snapshot: two Prometheus servers cost as much as one."""
KAFKA_SECONDS_MAX = 3.0
"""Timeout of a request to Kafka: a scrape has 10 s by default, in which a stream must be reported as unknown."""
CLIENT_SECONDS_MAX = 60.0
"""Timeout of a client: each one has a thread, and one that is gone without a word would keep it."""
STREAMS_AT_ONCE = 16
"""Threads for streams: a snapshot mostly waits for Kafka."""


class StreamMetric(msgspec.Struct, frozen=True):
    """A metric with one series for each stream.

    Attributes:
        name: Its name.
        meaning: One sentence.
        read: Its value; None if it is unknown, or missing.
    """

    name: str
    meaning: str
    read: Callable[[HealthFacts], float | None]


class StreamCounter(msgspec.Struct, frozen=True):
    """A counter with one series for each stream: growth since the exporter started.

    It never falls: a rewind lowers figures of a stream, and a forgotten partition takes its own away.

    Attributes:
        name: Its name, without `_total`.
        meaning: One sentence.
        read: The figures whose growth it sums, by partition; that of the whole stream is under `WHOLE`.
    """

    name: str
    meaning: str
    read: Callable[[HealthFacts], Mapping[TopicIdPartition, int]]


def _of_kafka(read: Callable[[HealthFacts], float | None]) -> Callable[[HealthFacts], float | None]:
    """A value that is unknown while Kafka does not answer, or before the first run."""
    return lambda facts: None if facts.kafka or not facts.has_table else read(facts)


def _of_table(read: Callable[[HealthFacts], float | None]) -> Callable[[HealthFacts], float | None]:
    """A value that is unknown while the table cannot be read, or before the first run."""
    return lambda facts: read(facts) if facts.has_table else None


STREAM_METRICS = (
    StreamMetric("lockstep_up", "1 while the writer sends heartbeats, else 0.", lambda facts: float(facts.is_written)),
    StreamMetric(
        "lockstep_kafka_up", "1 while Kafka answers, else 0.", _of_table(lambda facts: float(not facts.kafka))
    ),
    StreamMetric(
        "lockstep_lag_messages",
        "Offsets from the positions to the high watermarks, in topics that the stream reads or will read.",
        _of_kafka(lambda facts: facts.lag_messages),
    ),
    StreamMetric(
        "lockstep_oldest_unread_seconds",
        "Age of the oldest uncommitted message, by Kafka's timestamp; 0 without lag.",
        _of_kafka(lambda facts: facts.waiting_seconds),
    ),
    StreamMetric(
        "lockstep_freshness_seconds",
        "Age of the newest committed message, by Kafka's timestamp; grows while no message arrives.",
        _of_table(lambda facts: facts.freshness_seconds),
    ),
    StreamMetric(
        "lockstep_absurd_timestamps",
        "Messages of the newest batches whose Kafka timestamp no clock can have shown, at least.",
        _of_table(lambda facts: facts.absurd_timestamps),
    ),
    StreamMetric(
        "lockstep_absent_removals",
        "Removals in the newest batches of keys that were not in the table of the fold.",
        _of_table(lambda facts: facts.absent_removals),
    ),
    StreamMetric(
        "lockstep_headroom_seconds",
        "Time until retention deletes an unread message, the least of all partitions; negative once it may.",
        _of_kafka(lambda facts: facts.headroom_seconds),
    ),
    StreamMetric(
        "lockstep_topics",
        "Topics that the stream reads or will read.",
        _of_kafka(
            lambda facts: len({each.topic for each in facts.partitions} | {name for name, _ in facts.unavailable})
        ),
    ),
    StreamMetric(
        "lockstep_partitions",
        "Partitions of these topics.",
        _of_kafka(lambda facts: len(facts.partitions) + len(facts.unavailable)),
    ),
    StreamMetric(
        "lockstep_unavailable_partitions",
        "Partitions of these topics without a leader that answers.",
        _of_kafka(lambda facts: len(facts.unavailable)),
    ),
    StreamMetric(
        "lockstep_open_transaction_seconds",
        "Age of the oldest open transaction; 0 without one.",
        _of_kafka(lambda facts: max((each.seconds for each in facts.transactions), default=0.0)),
    ),
    StreamMetric(
        "lockstep_seconds_since_commit",
        "Time since the last batch was committed, or the writer claimed the table.",
        _of_table(lambda facts: facts.progress_seconds),
    ),
    StreamMetric(
        "lockstep_quarantine_size",
        "Messages in quarantine.",
        _of_table(lambda facts: facts.quarantined_messages),
    ),
    StreamMetric(
        "lockstep_uncompacted_hours",
        "Closed hours that wait for compaction.",
        _of_table(lambda facts: facts.debt.hours),
    ),
    StreamMetric(
        "lockstep_uncompacted_files",
        "Small files of these hours.",
        _of_table(lambda facts: facts.debt.files),
    ),
    StreamMetric(
        "lockstep_open_loss_sessions",
        "Sessions whose states were lost, without accepted losses.",
        _of_table(lambda facts: facts.lost.open.sessions),
    ),
    StreamMetric(
        "lockstep_open_loss_messages",
        "Their messages that are in no row, as far as the transform counts them (`pending`).",
        _of_table(lambda facts: facts.lost.open.messages),
    ),
)
WHOLE = TopicIdPartition("", 0)
STREAM_COUNTERS = (
    StreamCounter(
        "lockstep_batches", "Committed batches, those of a repeated range again.", lambda facts: {WHOLE: facts.batch}
    ),
    StreamCounter(
        "lockstep_committed_offsets",
        "Offsets by which the positions advanced: the rate is that of consumption.",
        lambda facts: facts.positions,
    ),
    StreamCounter(
        "lockstep_claims", "Claims of the table by a writer: starts and handovers.", lambda facts: {WHOLE: facts.epoch}
    ),
    StreamCounter(
        "lockstep_quarantined_messages",
        "Messages that entered quarantine, those that retention has dropped included.",
        lambda facts: {WHOLE: facts.quarantined_ever},
    ),
    StreamCounter(
        "lockstep_lost_sessions",
        "Sessions whose states were lost, accepted or not.",
        lambda facts: {WHOLE: facts.lost.total.sessions},
    ),
    StreamCounter(
        "lockstep_lost_messages",
        "Their messages that are in no row.",
        lambda facts: {WHOLE: facts.lost.total.messages},
    ),
)
FURTHER_METRICS = {
    "lockstep_desired_state": "1 for the desired state of the stream, 0 for the others; label `state`.",
    "lockstep_alarm": "2 for an error, 1 for a warning, 0 without an alarm of this kind; label `kind`.",
    "lockstep_topic_lag_messages": "Lag of one topic; label `topic`.",
    "lockstep_scrape_duration_seconds": "Time that it took to read these figures.",
}
FOLLOWER_METRICS = {
    "lockstep_follower_unread_batches": "Batches that are ready for a follower and unread; labels `kind`, `follower`.",
    "lockstep_follower_freshness_seconds": "Age of the newest commit that a follower has read; the same labels.",
}
WRITER_METRICS = {
    "lockstep_messages_per_second": "Messages that the writer read in a second, over the last minute.",
    "lockstep_rows_per_second": "Rows that it wrote in a second, over the last minute.",
    "lockstep_task_cpu_cores": "CPU seconds of its tasks in a second, over the last minute.",
}
PHASE_METRIC = "lockstep_batch_phase_seconds"
PARTITION_METRIC = "lockstep_partition_lag_messages"
LABELLED_METRICS = {
    PHASE_METRIC: "Mean wall time of a phase of a batch, over the last minute; label `phase`.",
    PARTITION_METRIC: "Lag of one partition, with `--partitions`; labels `topic`, `partition`.",
}
RATE_SECONDS = 60.0
"""Window of the rates: the usual time between two scrapes, or more."""
LEVELS = {AlarmSeverity.WARNING: 1.0, AlarmSeverity.ERROR: 2.0}


class StreamSnapshot(msgspec.Struct, frozen=True):
    """One snapshot of a stream.

    Attributes:
        health: Its health.
        seconds: Time that it took.
        counts: The counters, by name.
        counted: The figures of each counter of the newest snapshot that could read the table.
        rates: The work of the writer; None without a live one.
        gauges: Figures of features.
    """

    health: Health
    seconds: float
    counts: Mapping[str, int] = {}
    counted: Mapping[str, Mapping[TopicIdPartition, int]] = {}
    rates: LiveRates | None = None
    gauges: tuple[StreamGauge, ...] = ()


def count_growth(before: StreamSnapshot | None, look: StreamSnapshot) -> StreamSnapshot:
    """A snapshot with its counters: those of the snapshot before, and the growth since."""
    if not look.health.facts.has_table:
        # A counter never goes back, also while the table cannot be read.
        if before is None:
            return look
        return msgspec.structs.replace(look, counts=before.counts, counted=before.counted)
    counted = {counter.name: counter.read(look.health.facts) for counter in STREAM_COUNTERS}
    counts = dict.fromkeys(counted, 0)
    if before is not None and before.counts:
        counts = dict(before.counts)
    for name, figures in counted.items():
        earlier = {} if before is None else before.counted.get(name, {})
        # A partition that is new, or was set back by a rewind, adds nothing.
        counts[name] += sum(max(0, figure - earlier.get(key, figure)) for key, figure in figures.items())
    return msgspec.structs.replace(look, counts=counts, counted=counted)


class HealthCollector(Collector):
    """Reads the health of all streams when it is scraped, at most once in ten seconds."""

    def __init__(self, streams: Iterable[AnyStream], settings: Settings, *, has_partitions: bool = False) -> None:
        """Reads nothing yet.

        Args:
            streams: The streams.
            settings: Addresses of Kafka and the tables.
            has_partitions: Whether each partition has a series for its lag.
        """
        self._has_partitions = has_partitions
        self._streams = sorted(streams, key=lambda stream: stream.name)
        self._settings = settings
        self._cluster = SharedCluster(settings.kafka, KAFKA_SECONDS_MAX)
        self._lock = threading.Lock()
        self._looks = tuple[StreamSnapshot, ...]()
        self._looked_at = float("-inf")

    @override
    def collect(self) -> Iterable[Metric]:
        looks = self._recent_looks()
        yield from make_metrics(looks)
        if self._has_partitions:
            yield _make_partition_gauge(looks)

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would read all streams to find the names."""
        return ()

    def _recent_looks(self) -> tuple[StreamSnapshot, ...]:
        with self._lock:
            if time.monotonic() - self._looked_at >= CACHE_SECONDS:
                self._cluster.invalidate()
                with ThreadPoolExecutor(max_workers=STREAMS_AT_ONCE, thread_name_prefix="metrics") as pool:
                    looks = tuple(pool.map(self._look, self._streams))
                self._looks = tuple(map(count_growth, self._looks or (None,) * len(looks), looks))
                self._looked_at = time.monotonic()
            return self._looks

    def _look(self, stream: AnyStream) -> StreamSnapshot:
        began = time.monotonic()
        handle = StreamHandle(stream, self._settings, kafka_seconds_max=KAFKA_SECONDS_MAX, shared=self._cluster)
        try:
            health = read_health(handle)
        except Exception as error:  # a defect of one snapshot must not hide the other streams
            logger.exception("stream %s could not be read", stream.name)
            health = make_unreadable(stream, *describe_unreadable(error, stream.name))
        seconds = time.monotonic() - began
        gauges = tuple(_read_gauges(handle.folders))
        return StreamSnapshot(health, seconds, rates=_read_rates(handle, health.facts), gauges=gauges)


def _read_gauges(folders: StreamFolders) -> Iterator[StreamGauge]:
    for read in load_parts("metrics"):
        try:
            yield from read(folders)
        except Exception:
            logger.exception("a figure of %s could not be read", folders.stream)


def _read_rates(handle: StreamHandle, facts: HealthFacts) -> LiveRates | None:
    if not facts.is_written:
        return None
    try:
        report = read_live_report(handle.folders.control, facts.epoch)
    except OSError:
        logger.exception("the rates of %s could not be read", handle.stream.name)
        return None
    return None if report is None else compute_rates(report, time.time(), RATE_SECONDS)


def make_metrics(looks: Sequence[StreamSnapshot]) -> Iterator[Metric]:
    """The metrics of these snapshots."""
    yield from (_make_gauge(metric, looks) for metric in STREAM_METRICS)
    yield from (_make_counter(counter, looks) for counter in STREAM_COUNTERS)
    desired, alarm, lag, seconds = (
        GaugeMetricFamily(name, meaning, labels=["stream", *labels])
        for (name, meaning), labels in zip(FURTHER_METRICS.items(), (["state"], ["kind"], ["topic"], []), strict=True)
    )
    for look in looks:
        facts = look.health.facts
        seconds.add_metric([facts.stream], look.seconds)
        for state in Desired:
            desired.add_metric([facts.stream, state.value], float(facts.desired is state))
        for kind, level in _alarm_levels(look.health):
            alarm.add_metric([facts.stream, kind], level)
        for topic, messages in _topic_lags(facts):
            lag.add_metric([facts.stream, topic], messages)
    yield from (desired, alarm, lag, seconds)
    yield from _make_writer_gauges(looks)
    yield from _make_follower_gauges(looks)
    yield from _make_feature_gauges(looks)


def _make_writer_gauges(looks: Sequence[StreamSnapshot]) -> Iterator[Metric]:
    messages, rows, cores = (
        GaugeMetricFamily(name, meaning, labels=["stream"]) for name, meaning in WRITER_METRICS.items()
    )
    phases = GaugeMetricFamily(PHASE_METRIC, LABELLED_METRICS[PHASE_METRIC], labels=["stream", "phase"])
    for look in looks:
        if (rates := look.rates) is None:
            continue
        stream = look.health.facts.stream
        messages.add_metric([stream], rates.messages)
        rows.add_metric([stream], rates.rows)
        cores.add_metric([stream], rates.cpu_cores)
        for phase, seconds in rates.phase_seconds.items():
            phases.add_metric([stream, phase], seconds)
    yield from (messages, rows, cores, phases)


def _make_partition_gauge(looks: Sequence[StreamSnapshot]) -> Metric:
    labels = ["stream", "topic", "partition"]
    gauge = GaugeMetricFamily(PARTITION_METRIC, LABELLED_METRICS[PARTITION_METRIC], labels=labels)
    for look in looks:
        for each in look.health.facts.partitions:
            gauge.add_metric([look.health.facts.stream, each.topic, str(each.partition)], each.lag_messages)
    return gauge


def _make_follower_gauges(looks: Sequence[StreamSnapshot]) -> Iterator[Metric]:
    unread, freshness = (
        GaugeMetricFamily(name, meaning, labels=["stream", "kind", "follower"])
        for name, meaning in FOLLOWER_METRICS.items()
    )
    for look in looks:
        for lag in look.health.facts.followers:
            labels = [look.health.facts.stream, lag.name.kind, lag.name.name]
            unread.add_metric(labels, lag.unread_batches)
            if lag.freshness_seconds is not None:
                freshness.add_metric(labels, lag.freshness_seconds)
    yield from (unread, freshness)


def _make_feature_gauges(looks: Sequence[StreamSnapshot]) -> Iterable[Metric]:
    made = dict[str, GaugeMetricFamily]()
    for look in looks:
        for each in look.gauges:
            labels = ["stream", *each.labels]
            gauge = made.setdefault(each.name, GaugeMetricFamily(each.name, each.meaning, labels=labels))
            gauge.add_metric([look.health.facts.stream, *each.labels.values()], each.value)
    return made.values()


def _make_gauge(metric: StreamMetric, looks: Sequence[StreamSnapshot]) -> Metric:
    gauge = GaugeMetricFamily(metric.name, metric.meaning, labels=["stream"])
    for look in looks:
        value = metric.read(look.health.facts)
        if value is not None:
            gauge.add_metric([look.health.facts.stream], value)
    return gauge


def _make_counter(counter: StreamCounter, looks: Sequence[StreamSnapshot]) -> Metric:
    family = CounterMetricFamily(counter.name, counter.meaning, labels=["stream"])
    for look in looks:
        if look.counts:
            family.add_metric([look.health.facts.stream], look.counts[counter.name])
    return family


def _alarm_levels(health: Health) -> Iterator[tuple[str, float]]:
    """The level of each kind of lockstep, without unknown levels; and of the alarms that extensions raise."""
    levels = dict.fromkeys((kind.value for kind in AlarmKind if kind not in health.unknown), 0.0)
    return iter((levels | {alarm.kind: LEVELS[alarm.severity] for alarm in health.alarms}).items())


def _topic_lags(facts: HealthFacts) -> Iterable[tuple[str, float]]:
    lags: dict[str, float] = {}
    for partition in facts.partitions:
        lags[partition.topic] = lags.get(partition.topic, 0.0) + partition.lag_messages
    return lags.items()


class ClientHandler(WSGIRequestHandler):
    """Answers one client, on a separate thread; a client that sends nothing, or takes nothing, is left after a time."""

    timeout = CLIENT_SECONDS_MAX

    @override
    def handle(self) -> None:
        with suppress(TimeoutError, ConnectionError):
            super().handle()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, as the handler of prometheus_client."""


def _answer_loopback_names(application: WSGIApplication) -> WSGIApplication:
    """Refuse requests under other names: the name of a foreign page that leads to this machine (DNS rebinding)."""

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        host = str(environment.get("HTTP_HOST", ""))
        if is_loopback_name(host):
            return application(environment, start)
        start("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        step = "ask 127.0.0.1, or start lockstep metrics with --host"
        return [f"refused: header Host = {host!a} is not a name of loopback\nnext: {step}\n".encode()]

    return answer


def start_exporter(collector: HealthCollector, host: str, port: int) -> WSGIServer:
    """Serve the metrics on a thread, at /metrics, until `shutdown()`; returns the server, whose port may have been 0.

    Raises:
        EnvironmentProblem: The port cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise EnvironmentProblem(
            f"port {port} of {host} cannot be used: {error.strerror}", next_step="lockstep metrics --port PORT"
        ) from error
    server.RequestHandlerClass = ClientHandler
    application = server.get_app()
    if application is not None and is_loopback_name(host):
        server.set_app(_answer_loopback_names(application))
    return server
