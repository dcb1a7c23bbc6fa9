"""Changes of the past, cell by cell of one table: each event for a delivery to each kind of target."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
import pytest
from msgspec.structs import replace

from lockstep import Kind
from lockstep.delivery import (
    DeliveredRow,
    Delivery,
    DeliveryToken,
    KafkaTopic,
    PostgresTable,
    RowSource,
    Target,
    TargetConnection,
    TargetInterrupted,
    TargetRefused,
    Webhook,
)
from lockstep.engine.driver import planner
from lockstep.features.compaction.run import compact_stream
from lockstep.features.delivery.changes import (
    CHANGES,
    Effect,
    HaltReason,
    Outcome,
    PastEvent,
    Remedy,
    TargetKind,
    find_kind,
)
from lockstep.features.delivery.deliver import run_delivery
from lockstep.features.delivery.events import read_history
from lockstep.features.delivery.kafka_target import KafkaConnection
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.features.delivery.postgres_target import PostgresConnection
from lockstep.features.delivery.prove import prove_deliveries
from lockstep.features.delivery.rebuild import RebuildMethod, prepare_rebuild
from lockstep.features.delivery.steps import PlacedRows, TableSnapshot
from lockstep.features.delivery.stop_order import is_stopped
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.features.retention.rows import drop_old_rows
from lockstep.model.commit_hour import format_hour
from lockstep.model.position import Position
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.plan_frame import Refused
from lockstep.operations.stream_table import open_table
from lockstep.settings import KafkaSettings, Settings
from lockstep.verify.report import InvariantStatus
from tests.features.delivery.delivering import read_messages
from tests.features.delivery.postgres_rows import VARIABLE, Current, execute, to_alert, to_current
from tests.features.delivery.receiver import URL, Receiver, receiving
from tests.support import offline_stream
from tests.support.feed import Feed
from tests.support.kept_stream import Row, keeping, message
from tests.support.offline_rewind import rewind
from tests.support.offline_stream import Offline
from tests.support.plain_reader import read_table
from tests.support.postgres import Postgres
from tests.support.tiers import keep_usual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstep.features.delivery.rebuild import TargetRebuilt
    from lockstep.table.head import Head
    from tests.support.kept_stream import Sent

PAGE = Path(__file__).parents[3] / "docs" / "deliver.md"
KEY: dict[str, Any] = {"key": ("_session", "name"), "removed": "value"}
TOPICS = (TargetKind.TOPIC, TargetKind.COMPACTED)
OTHERS = tuple(kind for kind in TargetKind if kind not in TOPICS)
DATABASES = (TargetKind.APPENDED, TargetKind.KEYED)
DATABASE_TABLES = ("appended", "keyed", "lockstep_deliveries")
COMMANDS = {
    Remedy.ACCEPT: "--accept continues after batch",
    Remedy.REBUILD: "lockstep delivery rebuild",
    Remedy.RENAME: "by another name",
}


@dataclass(frozen=True)
class Memory(Target):
    """A user's target: a list in this process."""

    stored: ClassVar[dict[str, list[tuple[Sequence[DeliveredRow], DeliveryToken]]]] = {}
    place: str

    @property
    def address(self) -> str:
        """Return the name of the list."""
        return f"memory {self.place}"

    def connect(self, delivery: str) -> TargetConnection:
        """Connect to the list."""
        del delivery
        return MemoryConnection(self.stored.setdefault(self.place, []))


@dataclass
class MemoryConnection(TargetConnection):
    """Writes with their tokens."""

    writes: list[tuple[Sequence[DeliveredRow], DeliveryToken]]

    @property
    def token(self) -> DeliveryToken | None:
        """Return the newest token."""
        return self.writes[-1][1] if self.writes else None

    def write(self, rows: Sequence[DeliveredRow], token: DeliveryToken) -> None:
        """Append rows and token."""
        self.writes.append((list(rows), replace(token, epoch=token.epoch + 1)))

    def close(self) -> None:
        """Do nothing."""


def to_noted(row: Row, origin: RowSource) -> Noted:
    """Return the current value with a new optional field."""
    current = to_current(row, origin)
    return Noted(current.name, current.value, origin.session)


class Noted(Current):
    """A current value with a note."""

    note: str | None = None


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres.start() as server:
        yield server


@dataclass
class Scene:
    """A stream with a delivery to each kind of target.

    Attributes:
        offline: The stream.
        feed: Creates the topics.
        url: The database.
        kinds: The kinds of targets.
        receiver: The receiver of the webhook; None for topics.
        noted: Whether the rows have a new field.
    """

    offline: Offline
    feed: Feed
    url: str
    kinds: tuple[TargetKind, ...]
    receiver: Receiver | None = None
    noted: bool = False
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def kafka(self) -> KafkaSettings:
        """Return the settings of the cluster."""
        return KafkaSettings(bootstrap_servers=self.feed.bootstrap_servers)

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the names of the target topics within the family."""
        return ("rows", "keys") if TargetKind.TOPIC in self.kinds else ()

    def start(self) -> None:
        """Create the topics and add batches of an earlier hour."""
        self.create_topics()
        (self.offline.root / "tables").mkdir()
        with hours_ago():
            self.add(4)

    def create_topics(self, partitions: int = 2) -> None:
        """Create the target topics."""
        if not self.topics:
            return
        self.feed.create("rows", partitions)
        self.feed.create("keys", partitions, {"cleanup.policy": "compact"})

    def declare(self, kind: TargetKind) -> DeclaredDelivery:
        """Declare the delivery to a kind of target."""
        family = self.feed.family
        topic: dict[str, Any] = {"tokens": f"{family}.tokens", "transaction_rows": 3}
        table: dict[str, Any] = {"connection": f"env:{VARIABLE}", "transaction_rows": 3}
        targets: dict[TargetKind, Any] = {
            TargetKind.TOPIC: KafkaTopic(topic=f"{family}.rows", **topic),
            TargetKind.COMPACTED: KafkaTopic(topic=f"{family}.keys", **topic, **KEY),
            TargetKind.APPENDED: PostgresTable(table="appended", **table),
            TargetKind.KEYED: PostgresTable(table="keyed", **table, **KEY),
            TargetKind.WEBHOOK: Webhook(url=f"env:{URL}"),
            TargetKind.OWN: Memory(family),
        }
        select: Any = None
        if kind in {TargetKind.COMPACTED, TargetKind.KEYED}:
            select = to_noted if self.noted else to_current
        elif self.noted:
            select = to_alert
        delivery = Delivery(name=kind.name.lower(), target=targets[kind], select=select)
        return DeclaredDelivery(delivery, dataclasses.replace(self.offline.stream, deliveries=(delivery,)))

    @property
    def settings(self) -> Settings:
        """Return the settings of the stream."""
        return Settings(kafka=self.kafka, table_root=self.offline.folders.root)

    def deliver(self, kind: TargetKind, *, accepts: bool = False) -> int:
        """Deliver the current rows."""
        return run_delivery(self.declare(kind), self.settings, stop=threading.Event(), accepts=accepts).rows

    def deliver_all(self) -> None:
        """Deliver the current rows to each target."""
        for kind in self.kinds:
            self.deliver(kind)

    def rebuild(self, kind: TargetKind, **options: bool) -> TargetRebuilt:
        """Rebuild a target."""
        return prepare_rebuild(self.declare(kind), self.settings, **options).commit()

    def add(self, batches: int = 1) -> None:
        """Add batches: three sessions in two topics change names and remove some."""
        for number in itertools.islice(self.numbers, batches):
            kind = Kind.SNAPSHOT if number == 1 else Kind.UPDATE
            topics: dict[str, list[Sent]] = {}
            for session, topic in (("p", "kept.one"), ("q", "kept.one"), ("r", "kept.two")):
                names = {"xyz"[number % 3]: 1, "xyz"[(number + 1) % 3]: number}
                topics.setdefault(topic, []).append((session, message(kind, number, **names)))
            self.offline.run(topics)

    def check(self, kind: TargetKind) -> None:
        """Assert by the proof that the target has the rows of the table."""
        if kind is TargetKind.OWN:
            return
        if kind is TargetKind.WEBHOOK:
            self._check_webhook()
            return
        (proof,) = prove_deliveries(self.declare(kind).stream, self.offline.folders, self.kafka)
        if self.offline_head.retention is not None and kind in {TargetKind.COMPACTED, TargetKind.KEYED}:
            assert "retention has dropped the last rows of some keys" in proof.reason or not proof.reason
        else:
            assert (kind, proof.status, proof.reason) == (kind, InvariantStatus.PROVEN, "")

    def _check_webhook(self) -> None:
        """Assert that the receiver has each row of the table, also with an id of another generation."""
        assert self.receiver is not None
        arrived = dict[str, tuple[str, str, int]]()
        for row in self.receiver.list_accepted():
            arrived[row["id"].split("/", 2)[2]] = (row["session"], row["value"]["name"], row["value"]["value"])
        for row in read_table(self.offline.folders.table).to_pylist():
            identity = "/".join(str(row[name]) for name in ("_topic_id", "_partition", "_emit_offset", "_row"))
            assert arrived[identity] == (row["_session"], row["name"], row["value"])

    @property
    def offline_head(self) -> Head:
        """Return the head of the table."""
        return open_table(self.offline.folders).base().head


@pytest.fixture
def url(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database for the deliveries of a test."""
    made = postgres.make_database("changed")
    monkeypatch.setenv(VARIABLE, made)
    return made


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A webhook receiver."""
    with receiving() as server:
        monkeypatch.setenv(URL, server.url)
        yield server


@contextmanager
def hours_ago() -> Iterator[None]:
    """Commit the batches of the block to an earlier hour."""
    hour = format_hour(datetime.now(UTC) - timedelta(hours=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "find_current_hour", lambda: hour)
        yield


Events = dict[PastEvent, "Callable[[Scene, pytest.MonkeyPatch], None]"]


def compact(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    close_hour(scene.offline.folders)
    compact_stream(scene.offline.folders)


def rewind_unread(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    scene.add(2)
    rewind(scene.offline, 4)


def rewind_read(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    rewind(scene.offline, 2)


def erase(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    request = EraseRequest(session="p", drop_state=True)
    erase_session(scene.offline.folders, request, EraseContext(), who="a test", why="a request")


def drop(scene: Scene, _: pytest.MonkeyPatch) -> None:
    """Add a batch in the current hour and drop the hour of all earlier rows."""
    scene.add(1)
    done = drop_old_rows(scene.offline.folders, timedelta(hours=1), cause="a test")
    assert done.retention is not None


def drop_read(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    drop(scene, patch)


def drop_unread(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    with hours_ago():
        scene.add(2)
    drop(scene, patch)


def restore_source(scene: Scene, _: pytest.MonkeyPatch) -> None:
    copy = scene.offline.root.with_name(f"{scene.offline.root.name}_copy")
    copy.mkdir()
    older = scene.offline.copied(copy)
    scene.add(2)
    scene.deliver_all()
    for name in ("_followers", "_deliveries"):  # they hold the position of a webhook
        shutil.copytree(scene.offline.folders.root / name, older.folders.root / name)
    scene.offline = older


def create_source_again(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    scene.offline.log.topics.clear()
    scene.numbers = itertools.count(1)

    def start_again(row: Any) -> Position:
        return Position(topic=row.topic, topic_id=f"again-{row.topic}", partition=0, next_offset=0)

    with patch.context() as inner:
        inner.setattr(offline_stream, "read_position", start_again)
        scene.add(1)


def add_field(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    scene.noted = True
    scene.add(1)


def grow_target(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    for name in scene.topics:
        scene.feed.grow(f"{scene.feed.family}.{name}", 3)


def create_target_again(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.deliver_all()
    for name in scene.topics:
        scene.feed.delete(f"{scene.feed.family}.{name}")
    scene.create_topics()
    if scene.receiver is not None:
        execute(scene.url, "DROP TABLE appended", "DROP TABLE keyed")
        scene.receiver.arrivals.clear()


def restore_target(scene: Scene, _: pytest.MonkeyPatch) -> None:
    """Restore an older database; topics cannot be restored."""
    scene.deliver_all()
    if scene.topics:
        return
    for name in DATABASE_TABLES:
        execute(scene.url, f"CREATE TABLE saved_{name} AS TABLE {name}")
    scene.add(2)
    scene.deliver_all()
    for name in DATABASE_TABLES:
        execute(scene.url, f"TRUNCATE {name}", f"INSERT INTO {name} TABLE saved_{name}")
    assert scene.receiver is not None
    del scene.receiver.arrivals[1:]


USUAL = (
    *(PastEvent.REWIND, PastEvent.ERASURE, PastEvent.UNREAD_RETENTION, PastEvent.OLDER_SOURCE, PastEvent.NEW_FIELD),
    PastEvent.OLDER_TARGET,
)
EVENTS: Events = {
    PastEvent.MAINTENANCE: compact,
    PastEvent.UNREAD_UNDONE: rewind_unread,
    PastEvent.REWIND: rewind_read,
    PastEvent.ERASURE: erase,
    PastEvent.RETENTION: drop_read,
    PastEvent.UNREAD_RETENTION: drop_unread,
    PastEvent.OLDER_SOURCE: restore_source,
    PastEvent.NEW_SOURCE_TOPIC: create_source_again,
    PastEvent.NEW_FIELD: add_field,
    PastEvent.GROWN_TARGET: grow_target,
    PastEvent.NEW_TARGET: create_target_again,
    PastEvent.OLDER_TARGET: restore_target,
}


def test_each_event_has_an_outcome_for_each_kind_and_a_row_in_the_page() -> None:
    """A promotion is a rewind for a delivery; test_histories.py contains a promotion."""
    assert CHANGES[PastEvent.PROMOTION] is CHANGES[PastEvent.REWIND]
    assert {*EVENTS, PastEvent.PROMOTION} == set(CHANGES) == set(PastEvent)
    lines = ["| event | " + " | ".join(kind.value for kind in TargetKind) + " |", "|---" * (len(TargetKind) + 1) + "|"]
    for event, row in CHANGES.items():
        lines.append(f"| {event.value} | " + " | ".join(row[kind].describe() for kind in TargetKind) + " |")
    assert "\n".join(lines) in PAGE.read_text()


@pytest.mark.parametrize("event", keep_usual(USUAL, EVENTS))
def test_each_event_has_its_outcome_outside_of_kafka(
    url: str, receiver: Receiver, tmp_path: Path, event: PastEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed("127.0.0.1:1", tmp_path.name)
    go(Scene(Offline(keeping(), tmp_path), feed, url, OTHERS, receiver), event, monkeypatch)


@pytest.mark.parametrize("event", [PastEvent.REWIND, PastEvent.ERASURE, PastEvent.GROWN_TARGET])
def test_each_event_has_its_outcome_in_topics(
    feed: Feed, url: str, tmp_path: Path, event: PastEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(Scene(Offline(keeping(), tmp_path), feed, url, TOPICS), event, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_each_further_event_has_its_outcome_in_topics(
    feed: Feed, url: str, tmp_path: Path, event: PastEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(Scene(Offline(keeping(), tmp_path), feed, url, TOPICS), event, monkeypatch)


def go(scene: Scene, event: PastEvent, patch: pytest.MonkeyPatch) -> None:
    """Deliver, apply the event, and check the outcome for each kind of target."""
    scene.start()
    EVENTS[event](scene, patch)
    for kind in scene.kinds:
        outcome = CHANGES[event][kind]
        assert find_kind(scene.declare(kind).delivery) is kind
        if outcome.effect is not Effect.CANNOT_BE:
            check_outcome(scene, kind, outcome)


def check_outcome(scene: Scene, kind: TargetKind, outcome: Outcome) -> None:
    if outcome.effect in {Effect.HALTS, Effect.IS_REFUSED}:
        with pytest.raises((DeliveryHalted, TargetRefused)) as stopped:
            scene.deliver(kind)
        if isinstance(stopped.value, DeliveryHalted):
            assert stopped.value.reason is outcome.reason
        step = stopped.value.next_step
        places = [step.find(COMMANDS[each]) for each in outcome.remedies]
        assert -1 not in places, (kind, step)
        assert outcome.effect is Effect.IS_REFUSED or places == sorted(places)
        if Remedy.REBUILD in outcome.remedies:
            scene.rebuild(kind)
        elif Remedy.ACCEPT in outcome.remedies:
            scene.deliver(kind, accepts=True)
        else:
            return
    scene.deliver(kind)
    if outcome.effect is Effect.IS_NOT_NOTICED:
        scene.rebuild(kind)
    if outcome.effect is Effect.LISTS:
        assert "to be erased there" in read_history(scene.settings.table_root, kind.name.lower()).events[0].detail
    elif not scene.noted:
        scene.check(kind)


@pytest.fixture
def database(url: str, tmp_path: Path) -> Scene:
    """A stream with deliveries to Postgres tables."""
    made = Scene(Offline(keeping(), tmp_path), Feed("127.0.0.1:1", tmp_path.name), url, DATABASES)
    made.start()
    return made


def read_numbers(url: str) -> list[tuple[int, int]]:
    """Return number and batch of each appended row."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT _number, _batch FROM appended ORDER BY 1").fetchall()


def test_a_retraction_deletes_the_undone_rows_alone_and_uses_no_number_again(database: Scene) -> None:
    database.deliver(TargetKind.APPENDED)
    before = read_numbers(database.url)
    rewind(database.offline, 2)
    plan = prepare_rebuild(database.declare(TargetKind.APPENDED), database.settings).plan
    assert (plan.method, plan.after, plan.obstacles) == (RebuildMethod.RETRACT, 2, ())
    done = database.rebuild(TargetKind.APPENDED)
    kept = [each for each in before if each[1] <= 2]
    assert read_numbers(database.url) == kept
    assert (done.deleted, done.rows, done.batch) == (len(before) - len(kept), 0, 2)
    database.offline.run({"kept.one": [("p", message(Kind.SNAPSHOT, 1, x=7)), ("p", message(Kind.UPDATE, 2, x=1))]})
    database.deliver(TargetKind.APPENDED)
    assert read_numbers(database.url)[len(kept) :][0][0] == before[-1][0] + 1
    database.check(TargetKind.APPENDED)
    events = [each.event for each in read_history(database.settings.table_root, "appended").events]
    assert events == ["started", "rebuilt", "stopped", "claimed"]


def test_a_rebuild_is_shown_and_refused_if_the_target_would_lose_rows_or_is_not_the_one_of_the_plan(
    database: Scene,
) -> None:
    drop(database, pytest.MonkeyPatch())
    database.deliver(TargetKind.APPENDED)
    with pytest.raises(Refused, match="the target would lose them") as refused:
        database.rebuild(TargetKind.APPENDED)
    assert "--accept-dropped" in refused.value.next_step
    database.rebuild(TargetKind.APPENDED, accept_dropped=True)
    with pytest.raises(Refused, match="lockstep cannot delete rows in memory"):
        database.rebuild(TargetKind.OWN, accept_dropped=True)
    rewind(database.offline, 4)
    late = prepare_rebuild(database.declare(TargetKind.APPENDED), database.settings)
    database.rebuild(TargetKind.APPENDED)
    with pytest.raises(Refused, match="the target has no undone rows"):
        late.commit()


def test_a_rebuild_that_dies_in_the_middle_has_changed_nothing(
    database: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.deliver(TargetKind.APPENDED)
    before = read_numbers(database.url)
    write = PostgresConnection._write_rows  # noqa: SLF001  # killed there
    left = [2]

    def die(self: PostgresConnection, *arguments: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise TargetInterrupted("appended", "the process died")
        write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "_write_rows", die)
        with pytest.raises(TargetInterrupted):
            database.rebuild(TargetKind.APPENDED, replaces=True)
    assert read_numbers(database.url) == before
    assert not is_stopped(database.settings.table_root, "appended")
    done = database.rebuild(TargetKind.APPENDED, replaces=True)
    assert (done.deleted, done.rows) == (None, len(before))
    assert [number for number, _ in read_numbers(database.url)] == [number + len(before) for number, _ in before]
    database.check(TargetKind.APPENDED)


def test_a_rebuild_of_a_topic_that_dies_in_the_middle_is_ended_by_the_next_run(
    feed: Feed, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(Offline(keeping(), tmp_path), feed, url, TOPICS)
    scene.start()
    rows = scene.deliver(TargetKind.TOPIC)

    def die(*_: object) -> None:
        raise TargetInterrupted("topic", "the process died")

    with monkeypatch.context() as patch:
        patch.setattr(KafkaConnection, "_delete_messages", die)
        with pytest.raises(TargetInterrupted):
            scene.rebuild(TargetKind.TOPIC)
    assert scene.deliver(TargetKind.TOPIC) == rows
    assert len(read_messages(feed.bootstrap_servers, f"{feed.family}.rows", 2)) == rows
    scene.check(TargetKind.TOPIC)


def test_a_topic_whose_cleanup_does_not_fit_is_refused(feed: Feed, url: str, tmp_path: Path) -> None:
    scene = Scene(Offline(keeping(), tmp_path), feed, url, TOPICS)
    (tmp_path / "tables").mkdir()
    scene.add(1)
    feed.create("rows", 1, {"cleanup.policy": "compact"})
    feed.create("keys", 1)
    for kind, problem in ((TargetKind.TOPIC, "is compacted"), (TargetKind.COMPACTED, "has cleanup.policy delete")):
        with pytest.raises(TargetRefused, match=problem):
            scene.deliver(kind)


@pytest.mark.parametrize("damages", [False, True])
def test_after_an_erasure_a_step_with_fewer_rows_than_its_ledger_halts(
    database: Scene,
    monkeypatch: pytest.MonkeyPatch,
    damages: bool,  # noqa: FBT001  # a parameter
) -> None:
    """The rows of the erased session are counted, so any other missing row is noticed."""
    erase(database, monkeypatch)
    fresh = dataclasses.replace(database, feed=Feed("127.0.0.1:1", "fresh"))
    Memory.stored.pop("fresh", None)
    read = TableSnapshot.read_rows

    def lose(self: TableSnapshot, *arguments: Any) -> Iterator[PlacedRows]:
        for placed in read(self, *arguments):
            yield placed._replace(rows=placed.rows.slice(0, placed.rows.num_rows - damages))

    monkeypatch.setattr(TableSnapshot, "read_rows", lose)
    if damages:
        with pytest.raises(DeliveryHalted, match=r"rows in the table, .* of which 6 are erased") as halted:
            fresh.deliver(TargetKind.OWN)
        assert halted.value.reason is HaltReason.INCOMPLETE
    else:
        assert fresh.deliver(TargetKind.OWN) > 0
