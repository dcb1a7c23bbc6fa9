"""Polls the streams while somebody watches the page.

The files of the writers are read each second: they are small and local to each stream. Tables and Kafka are read every
ten seconds, and at once after a writer has started or ended. Without a watcher nothing is read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec

from lockstep.control.heartbeat import POLLS, Phase, compute_poll_seconds, find_heartbeat_time, read_heartbeat
from lockstep.control.live_report import find_newest_epoch, read_live_report
from lockstep.declare.stream import AnyStream, format_source
from lockstep.features.console.views import (
    CheckedRule,
    CheckVerdict,
    KnownStream,
    StreamCard,
    StreamDeclaration,
    StreamDetail,
    StreamView,
    WriterSnapshot,
    make_card,
    make_view,
)
from lockstep.features.quality.check import read_last_check
from lockstep.features.quality.rules import RuleOutcome
from lockstep.operations.growth import read_growth
from lockstep.operations.inspect.health import (
    UNREADABLE_ERRORS,
    describe_unreadable,
    make_unreadable,
    read_health,
)
from lockstep.operations.inspect.history import read_history
from lockstep.operations.last_proof import read_last_proof
from lockstep.operations.quarantine import Place, QuarantineFilter, list_quarantine, read_quarantined
from lockstep.operations.stream_handle import SharedCluster, StreamHandle
from lockstep.settings import Settings
from lockstep.storage import find_storage
from lockstep.table.layout import StreamFolders
from lockstep.table.quarantine import QuarantineRow

LOG = logging.getLogger(__name__)

LIVE_SECONDS = 1.0
"""Time between two reads of the files of a writer; stretched where each one is a request."""
TABLE_SECONDS = 10.0
"""Time between two reads of tables and Kafka."""
KAFKA_SECONDS_MAX = 3.0
"""Timeout of a request to Kafka."""
STREAMS_AT_ONCE = 16
"""Threads for streams: they mostly wait for Kafka."""
EVENTS_SHOWN = 30
ENTRIES_READ = 1_000
"""Log entries in which the events are searched: half a second of reading. Older events are left out."""
GROUPS_SHOWN = 10
MESSAGE_BYTES_SHOWN = 4_000


class WriterWatch:
    """Sees from the files of a stream's newest writer whether it lives."""

    def __init__(self, folders: StreamFolders) -> None:
        self._folders = folders
        self._patience = POLLS * compute_poll_seconds(folders.control)
        self._beat = (0, 0)
        self._moved_at = 0.0

    def poll(self, now: float) -> WriterSnapshot:
        """Read the files.

        Args:
            now: Monotonic time of this process, in seconds.
        """
        control = self._folders.control
        epoch = find_newest_epoch(control)
        beat = None if epoch is None else read_heartbeat(control, epoch)
        if epoch is None or beat is None:
            return WriterSnapshot()
        if (epoch, beat.counter) != self._beat:
            is_new = epoch != self._beat[0]
            self._beat = (epoch, beat.counter)
            # The last move of a heartbeat that is seen for the first time may be long ago.
            age = self._find_age(epoch) if is_new else 0.0
            self._moved_at = now - age
        is_alive = beat.phase is not Phase.ENDED and now - self._moved_at < self._patience
        return WriterSnapshot(is_alive, read_live_report(control, epoch))

    def _find_age(self, epoch: int) -> float:
        """Seconds since a heartbeat was written, by the clocks of storage and machine."""
        written_at = find_heartbeat_time(self._folders.control, epoch)
        if written_at is None:
            return 0.0
        return max(0.0, time.time() - written_at)


class ConsoleWatcher:
    """The facts of all streams, as new as the page promises."""

    def __init__(self, streams: Iterable[AnyStream], settings: Settings) -> None:
        """Read nothing yet.

        Args:
            streams: The streams.
            settings: Addresses of Kafka and the tables.
        """
        self._streams = {stream.name: stream for stream in sorted(streams, key=lambda stream: stream.name)}
        self._settings = settings
        self._cluster = SharedCluster(settings.kafka, KAFKA_SECONDS_MAX)
        self._known = {name: KnownStream(declared=_declare(stream)) for name, stream in self._streams.items()}
        self._writers = {name: WriterWatch(self._folders(name)) for name in self._streams}
        self._lock = threading.Lock()
        self._watched: Counter[str] = Counter()
        self._viewers = 0
        self._is_watched = threading.Event()
        self._is_due = threading.Event()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=watch, daemon=True, name=f"console-{watch.__name__}")
            for watch in (self._watch_writers, self._watch_tables)
        ]

    def start(self) -> None:
        """Poll from now on, while somebody watches."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Poll no more."""
        self._is_over.set()
        self._is_watched.set()
        self._is_due.set()
        for thread in self._threads:
            thread.join(KAFKA_SECONDS_MAX)

    @contextmanager
    def watching(self, stream: str = "") -> Iterator[None]:
        """Somebody watches all streams, or one of them with its detail, while the block lasts."""
        with self._lock:
            self._viewers += 1
            self._watched[stream] += 1
            self._is_watched.set()
            self._is_due.set()
        try:
            yield
        finally:
            with self._lock:
                self._viewers -= 1
                self._watched[stream] -= 1
                if not self._viewers and not self._is_over.is_set():
                    self._is_watched.clear()

    def has(self, stream: str) -> bool:
        """Whether a stream is declared."""
        return stream in self._streams

    def list_cards(self, now: float) -> tuple[StreamCard, ...]:
        """One card for each stream, those with alarms first, then by name."""
        cards = [make_card(known, now) for known in self._known.values()]
        return tuple(sorted(cards, key=lambda card: (not card.alarms, card.name)))

    def show(self, stream: str, now: float) -> StreamView:
        """One stream. Raises KeyError for one that is not declared."""
        return make_view(self._known[stream], now)

    def show_message(self, stream: str, place: Place) -> str:
        """A message in quarantine as text, or the reason why it cannot be shown."""
        try:
            rows = read_quarantined(self._folders(stream), place)
        except UNREADABLE_ERRORS as error:
            return describe_unreadable(error, stream)[0]
        return "\n\n".join(map(_describe_message, rows))

    def poll_writers(self) -> None:
        """Read the files of all writers."""
        for name, watch in self._writers.items():
            try:
                live = watch.poll(time.monotonic())
            except OSError as error:  # the poll of the tables says why
                LOG.debug("the writer of %s cannot be seen: %s", name, error)
                live = WriterSnapshot()
            live_before = self._known[name].live
            self._update(name, live=live)
            if (live.is_alive, _find_epoch(live)) != (live_before.is_alive, _find_epoch(live_before)):
                self._is_due.set()

    def poll_tables(self) -> None:
        """Read tables and Kafka, and the detail of each stream that is watched."""
        self._cluster.invalidate()
        # One stream whose Kafka does not answer must not delay the others.
        with ThreadPoolExecutor(max_workers=STREAMS_AT_ONCE, thread_name_prefix="console") as pool:
            list(pool.map(self._poll_table, self._streams))

    def _poll_table(self, name: str) -> None:
        stream = self._streams[name]
        handle = StreamHandle(stream, self._settings, kafka_seconds_max=KAFKA_SECONDS_MAX, shared=self._cluster)
        generation = 0
        try:
            health = read_health(handle)
            generation = 0 if handle.head is None else handle.head.generation
        except Exception as error:  # a defect in one stream is not to hide the others
            LOG.exception("stream %s cannot be read", name)
            health = make_unreadable(stream, *describe_unreadable(error, name))
        self._update(name, facts=health.facts, alarms=health.alarms, generation=generation, polled_at=time.time())
        if self._watched[name]:
            self._update(name, detail=_read_detail(handle.folders, self._known[name]))

    def _update(self, name: str, **facts: object) -> None:
        with self._lock:
            self._known[name] = msgspec.structs.replace(self._known[name], **facts)

    def _folders(self, name: str) -> StreamFolders:
        return StreamFolders(name, self._settings.table_root)

    def _watch_writers(self) -> None:
        seconds = LIVE_SECONDS * find_storage(self._settings.table_root).poll_factor
        while not self._is_over.is_set():
            self._is_watched.wait()
            self.poll_writers()
            self._is_over.wait(seconds)

    def _watch_tables(self) -> None:
        while not self._is_over.is_set():
            self._is_watched.wait()
            # Before the poll: a writer that starts meanwhile makes the next poll due.
            self._is_due.clear()
            self.poll_tables()
            self._is_over.wait(LIVE_SECONDS)
            self._is_due.wait(TABLE_SECONDS - LIVE_SECONDS)


def _declare(stream: AnyStream) -> StreamDeclaration:
    return StreamDeclaration(
        name=stream.name,
        topics=stream.topics.pattern,
        integrity=format_source(stream.integrity),
        trigger=format_source(stream.trigger, with_defaults=True),
        description=stream.description,
    )


def _describe_message(row: QuarantineRow) -> str:
    """Cause and first bytes of a message; bytes that are not text are escaped."""
    value = (row.value or b"")[:MESSAGE_BYTES_SHOWN].decode("utf-8", "backslashreplace")
    lines = [f"cause: {row.cause}"]
    if row.expected:
        lines.append(f"expected: {row.expected}")
    if row.found:
        lines.append(f"found: {row.found}")
    size = f"value, {row.value_bytes:,} bytes:" if row.value is not None else "no value"
    return "\n".join([*lines, f"key: {row.key!r}", size, value])


def _find_epoch(writer: WriterSnapshot) -> int | None:
    return None if writer.report is None else writer.report.epoch


def _read_detail(folders: StreamFolders, known: KnownStream) -> StreamDetail:
    """The detail of a stream; parts that cannot be read are left out, and the first reason is given."""
    detail = StreamDetail(quarantine=known.detail.quarantine)
    try:
        detail = msgspec.structs.replace(detail, check=_read_check(folders), proof=read_last_proof(folders))
        if known.facts is None or not known.facts.has_table:
            return detail
        history = read_history(folders, EVENTS_SHOWN, entries_max=ENTRIES_READ)
        detail = msgspec.structs.replace(detail, history=history.events, growth=read_growth(folders))
        return _add_quarantine(detail, folders, known)
    except UNREADABLE_ERRORS as error:
        return msgspec.structs.replace(detail, problem=describe_unreadable(error, folders.stream)[0])


def _add_quarantine(detail: StreamDetail, folders: StreamFolders, known: KnownStream) -> StreamDetail:
    """The groups in quarantine; they are read again only if their number has changed."""
    count = 0 if known.facts is None else known.facts.quarantined_messages
    # To group the quarantine reads its files; the head has the number.
    if count == known.detail.quarantine_messages:
        return msgspec.structs.replace(detail, quarantine_more=known.detail.quarantine_more, quarantine_messages=count)
    if count == 0:
        return msgspec.structs.replace(detail, quarantine=())
    listed = list_quarantine(folders, QuarantineFilter(), limit=GROUPS_SHOWN)
    return msgspec.structs.replace(
        detail, quarantine=listed.groups, quarantine_more=listed.more, quarantine_messages=count
    )


def _read_check(folders: StreamFolders) -> CheckVerdict | None:
    last = read_last_check(folders)
    if last is None:
        return None
    rules = [
        CheckedRule(
            rule=result.rule,
            sentence=result.sentence,
            outcome=result.outcome,
            severity=result.severity,
            reason=result.reason,
        )
        for result in last.checked.results
    ]
    return CheckVerdict(
        at=last.history[-1].at if last.history else None,
        holds=last.checked.holds,
        completeness_percent=last.checked.completeness_percent,
        rules=tuple(sorted(rules, key=lambda rule: rule.outcome not in _BROKEN)),
    )


_BROKEN = (RuleOutcome.FAILED, RuleOutcome.CRASHED)
