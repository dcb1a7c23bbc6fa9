"""Runs a delivery: rows from the table to the target, each write with its token."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from lockstep.declare.delivery import refuse_shared
from lockstep.declare.delivery_target import (
    DeliveredRow,
    DeliveryToken,
    RowIdentity,
    RowSource,
    RowUndeliverable,
    TargetConnection,
    TargetInterrupted,
)
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.delivery.decode import RowDecoder
from lockstep.features.delivery.events import read_history, record_claim, record_event
from lockstep.features.delivery.position import (
    KIND,
    DeliveryHalted,
    HaltFound,
    HaltReason,
    VersionRead,
    accept_halt,
    find_halt,
    make_first_token,
    mark_version,
    move_token,
)
from lockstep.features.delivery.steps import (
    PlacedRows,
    Step,
    TableSnapshot,
    find_readable_batch,
    plan_step,
    plan_steps,
    read_ends,
)
from lockstep.features.delivery.stop_order import StopSwitch
from lockstep.features.delivery.targets import DeclaredDelivery, open_target
from lockstep.model.position import TopicIdPartition
from lockstep.operations.followers import record_failure
from lockstep.operations.plan_frame import Description, Labelled
from lockstep.operations.stream_table import has_table, open_table
from lockstep.settings import Settings
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.follower_positions import (
    FollowerPosition,
    Reads,
    SourceHistory,
    make_unread_history,
    write_position,
)
from lockstep.table.layout import StreamFolders
from lockstep.table.row_order import RowPlace

T = TypeVar("T")

LOG = logging.getLogger("lockstep")
ATTEMPTS_MAX = 5
"""Claims in a row without progress after which a bounded run gives up; one that follows tries on."""
BACK_OFF_SECONDS_MAX = 60.0
POLL_SECONDS = 0.5
"""How often a run that follows looks for new batches."""
POSITION_SECONDS = 10.0
"""How often it writes its position for status and alarms."""
TOKEN_SECONDS = 5.0
"""Batches without a row to deliver move the token once in so many seconds."""


class DeliveryRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run of a delivery.

    Attributes:
        name: Name of the delivery.
        stream: Name of its stream.
        target: Where rows go.
        batch: Rows of all batches up to this number are in the target.
        rows: Rows that this run has written.
        delivered: Rows in the target, of all runs.
        writes: Writes of this run, each with its token.
        claims: Claims of the target; more than one after an interruption.
        is_waiting: The stream has no table yet.
        is_stopped: The delivery is stopped by an order, and delivers nothing.
    """

    name: str
    stream: str
    target: str
    batch: int = 0
    rows: int = 0
    delivered: int = 0
    writes: int = 0
    claims: int = 0
    is_waiting: bool = False
    is_stopped: bool = False

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("target", self.target),
            Labelled("rows", self.rows),
            Labelled("rows in the target", self.delivered),
            Labelled("batch", self.batch),
            Labelled("writes", self.writes),
        )
        notes = (f"{self.stream} has no table yet",) if self.is_waiting else ()
        if self.is_stopped:
            notes = (f"it is stopped: lockstep delivery start {self.name}",)
        return Description(title=f"{self.name}: delivered", facts=facts, notes=notes)


class UnknownDelivery(LockstepError):
    """No delivery of this name is declared.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(f"no delivery {name!r} is declared in assets/", next_step=f"deliveries: {listed}")
        self.name = name


def list_deliveries(streams: Iterable[AnyStream]) -> dict[str, DeclaredDelivery]:
    """The deliveries of some streams, by name.

    Raises:
        DeclarationError: Two have one name or one target.
    """
    listed = list[DeclaredDelivery]()
    for stream in streams:
        listed += [DeclaredDelivery(each, stream) for each in stream.deliveries]
    refuse_shared([each.delivery for each in listed])
    return {each.delivery.name: each for each in listed}


def choose_deliveries(name: str | None, known: dict[str, DeclaredDelivery]) -> tuple[DeclaredDelivery, ...]:
    """A declared delivery, or all. Raises UnknownDelivery."""
    if name is None:
        return tuple(known.values())
    if name not in known:
        raise UnknownDelivery(name, known)
    return (known[name],)


def run_delivery(
    declared: DeclaredDelivery,
    settings: Settings,
    *,
    stop: threading.Event,
    follows: bool = False,
    accepts: bool = False,
) -> DeliveryRun:
    """Deliver the rows of committed batches; the stream is neither slowed nor stopped.

    A run claims the target, so that earlier runs of the delivery can write no more, and reads its token. The history
    of the table decides whether it continues or halts. Then it writes the rows of the batches after the token, each
    write with its token. After an interruption it claims the target again, following a pause.

    Args:
        declared: The delivery and its stream.
        settings: Kafka and the table root.
        stop: Ends the run after the write in progress.
        follows: Wait for further batches until `stop`; otherwise end behind the newest batch of now.
        accepts: Continue after a halt that can be accepted; rows that it names stay as they are.

    Raises:
        DeliveryHalted: The history of the table or a row needs an operator.
        DeliveryFenced: Another run has claimed the target.
        TargetRefused: The target cannot be used.
        TargetInterrupted: The target did not answer, `ATTEMPTS_MAX` times in a row; not if it follows.
        TableError: The table or its ledger is damaged.
    """
    unread = _make_position(declared, make_unread_history(declared.stream.name))
    with record_failure(settings.table_root, unread):
        return _Run(declared, settings, stop).run(follows=follows, accepts=accepts)


class _Run:
    """One run of a delivery, over several claims."""

    def __init__(self, declared: DeclaredDelivery, settings: Settings, stop: threading.Event) -> None:
        self._declared = declared
        self._settings = settings
        self._stop = StopSwitch(stop, settings.table_root, declared.delivery.name)
        self._delivery = declared.delivery
        self._root = settings.table_root
        self._folders = StreamFolders(declared.stream.name, settings.table_root)
        self._decoder = RowDecoder(declared.stream.types.row)
        self._position_at = time.monotonic()
        target = self._delivery.target
        self.result = DeliveryRun(name=self._delivery.name, stream=declared.stream.name, target=target.address)

    def run(self, *, follows: bool, accepts: bool) -> DeliveryRun:
        failed = 0
        pause = 1.0
        while not self._stop.is_set():
            before = self.result.writes
            if not has_table(self._folders):
                if not follows:
                    return msgspec.structs.replace(self.result, is_waiting=True)
                self._stop.wait(POLL_SECONDS)
                continue
            try:
                self._claim_and_follow(follows=follows, accepts=accepts)
            except TargetInterrupted:
                failed, pause = (1, 1.0) if self.result.writes > before + 1 else (failed + 1, pause * 2)
                if not follows and failed >= ATTEMPTS_MAX:
                    raise
                self._stop.wait(min(pause, BACK_OFF_SECONDS_MAX))
            except DeliveryHalted as halted:
                detail = halted.problem if halted.reason is not HaltReason.ROW else halted.reason.value
                record_event(self._root, self._delivery.name, "halted", self.result.batch, detail)
                raise
            else:
                break
        return msgspec.structs.replace(self.result, is_stopped=self._stop.is_ordered)

    def _claim_and_follow(self, *, follows: bool, accepts: bool) -> None:
        connection = open_target(self._declared, self._settings.kafka)
        try:
            log = open_table(self._folders)
            read = read_version(self._folders, log)
            claim = _Claim(self._declared, self._folders, self._decoder, connection, self._count)
            claim.start(self._find_start(claim, read, accepts=accepts), read)
            record_claim(self._root, self._delivery.name, claim.epoch)
            while True:
                claim.deliver_up_to(claim.read_next(log), self._stop)
                if not follows or self._stop.wait(POLL_SECONDS):
                    claim.settle()
                    self._write_position(claim.token)
                    return
                self._write_position_if_due(claim.token)
        finally:
            connection.close()

    def _find_start(self, claim: _Claim, read: VersionRead, *, accepts: bool) -> DeliveryToken:
        """Compare the position with the table, and accept a halt. Raises DeliveryHalted."""
        known = claim.connection.token
        token = make_first_token(self._delivery, self._folders.stream, read) if known is None else known
        self.result = msgspec.structs.replace(self.result, claims=self.result.claims + 1, batch=token.batch)
        halt = None if known is None else find_halt(token, read.base.head, _read_entry(self._folders, token.version))
        detail = "" if known is not None else f"first start, after batch {token.batch}"
        event = "claimed"
        if halt is not None and accepts and self._can_accept(halt):
            token = claim.recount(accept_halt(token, read.base.head, halt.reason), read)
            event = "accepted"
            detail = f"{halt.reason.value}: {halt.evidence}"
        elif halt is not None:
            raise DeliveryHalted(self._delivery.name, halt.reason, halt.evidence, next_step=halt.next_step)
        self._note_erasure(token, read)
        self._note_restored(known, token)
        if event != "claimed" or known is None:
            record_event(self._root, self._delivery.name, event, token.batch, detail)
        return token

    def _can_accept(self, halt: HaltFound) -> bool:
        """Rows of undone batches can stay if rows are appended; by keys, they have replaced earlier rows."""
        is_undone = halt.reason is HaltReason.UNDONE and self._delivery.target.joins_batches
        return is_undone or halt.reason is HaltReason.DROPPED

    def _note_restored(self, known: DeliveryToken | None, token: DeliveryToken) -> None:
        """Note a target that went back: it was restored from a backup. Its rows went back with the token."""
        claim = 0 if known is None else known.epoch
        newest = read_history(self._root, self._delivery.name).claim
        if claim < newest:
            detail = (
                f"{self._delivery.target.address} went back: it had claim {newest}, and has claim {claim}; "
                f"rows are delivered again from batch {token.batch} on"
            )
            LOG.warning("delivery %s: %s", self._delivery.name, detail)
            record_event(self._root, self._delivery.name, "restored", token.batch, detail)

    def _note_erasure(self, token: DeliveryToken, read: VersionRead) -> None:
        erasure = read.base.head.erasure
        if erasure is not None and erasure.batch > token.erasure:
            detail = (
                f"{erasure.describe()}: its rows up to batch {token.step_batch} are in the target, to be erased there"
            )
            record_event(self._root, self._delivery.name, "erasure", token.batch, detail)

    def _count(self, rows: int, token: DeliveryToken) -> None:
        self.result = msgspec.structs.replace(
            self.result,
            rows=self.result.rows + rows,
            writes=self.result.writes + 1,
            delivered=token.delivered,
            batch=token.batch,
        )
        self._write_position_if_due(token)

    def _write_position_if_due(self, token: DeliveryToken) -> None:
        if time.monotonic() - self._position_at > POSITION_SECONDS:
            self._write_position(token)

    def _write_position(self, token: DeliveryToken) -> None:
        """Write the position for status, alarms and proof."""
        write_position(self._root, _make_position(self._declared, make_read_history(self._folders, token)))
        self._position_at = time.monotonic()


class _Claim:
    """The work under one claim of the target."""

    def __init__(
        self,
        declared: DeclaredDelivery,
        folders: StreamFolders,
        decoder: RowDecoder,
        connection: TargetConnection,
        count: Callable[[int, DeliveryToken], None],
    ) -> None:
        self._delivery = declared.delivery
        self._folders = folders
        self._decoder = decoder
        self.connection = connection
        self._count = count
        self._code = declared.delivery.digest_code()
        self._ends = dict[TopicIdPartition, RowPlace]()
        self._rows = list[DeliveredRow]()
        self._written_at = 0.0

    def start(self, token: DeliveryToken, read: VersionRead) -> None:
        """Write the token of the claim, and read the ends of its batch."""
        self.token = mark_version(token, read, self._code)
        self._write(self.token)
        self._ends = read_ends(self._folders, read.base.head, self.token.batch)

    @property
    def epoch(self) -> int:
        """Number of the claim, as the target has it."""
        return 0 if self.connection.token is None else self.connection.token.epoch

    def recount(self, token: DeliveryToken, read: VersionRead) -> DeliveryToken:
        """Count the rows of a step that was cut shorter, up to the last row that is done."""
        if token.last is None:
            return token
        ends = read_ends(self._folders, read.base.head, token.batch)
        step = plan_step(self._folders, read.base.head, token.batch, token.step_batch, ends)
        last = _make_place(token.last)
        placed = TableSnapshot(self._folders, read.base).read_rows(step)
        done = sum(each.rows.num_rows for each in placed)
        left = sum(each.rows.num_rows for each in TableSnapshot(self._folders, read.base).read_rows(step, last))
        return msgspec.structs.replace(token, rows=done - left)

    def read_next(self, log: OutputLog) -> VersionRead:
        """Read the newest version, after its history was compared with the position.

        Raises:
            DeliveryHalted: The history needs an operator.
        """
        read = read_version(self._folders, log)
        halt = find_halt(self.token, read.base.head, _read_entry(self._folders, self.token.version))
        if halt is not None:
            raise DeliveryHalted(self._delivery.name, halt.reason, halt.evidence, next_step=halt.next_step)
        return read

    def deliver_up_to(self, read: VersionRead, stop: StopSwitch) -> None:
        """Deliver all batches of a version, or up to a stop."""
        head = read.base.head
        until = find_readable_batch(self._folders, read.base.head)
        if self.token.last is None and self.token.batch >= until:
            return
        snapshot = TableSnapshot(self._folders, read.base)
        self.token = mark_version(self.token, read, self._code)
        if self.token.last is not None:
            step = plan_step(self._folders, head, self.token.batch, self.token.step_batch, self._ends)
            self._deliver_step(step, snapshot, stop)
        joins = self._delivery.target.joins_batches
        for step in plan_steps(self._folders, head, self.token.batch, until, self._ends, joins=joins):
            if stop.is_set():
                return
            self._deliver_step(step, snapshot, stop)

    def settle(self) -> None:
        """Write the token if it has moved since the last write."""
        if self.connection.token is None or self.connection.token.batch != self.token.batch:
            self._write(self.token)

    def _deliver_step(self, step: Step, snapshot: TableSnapshot, stop: StopSwitch) -> None:
        target = self._delivery.target
        last = None if self.token.last is None else _make_place(self.token.last)
        self.token = msgspec.structs.replace(
            self.token, step_batch=step.batch, step_generation=step.generation, written_at=datetime.now(UTC)
        )
        since = time.monotonic()
        pieces = _cut(snapshot.read_rows(step, last), target.transaction_rows)
        with closing(_read_ahead(map(self._decoder.decode, pieces))) as decoded:
            for rows, origins in decoded:
                self._take(rows, origins)
                is_late = time.monotonic() - since > target.transaction_seconds
                if len(self._rows) >= target.transaction_rows or (self._rows and is_late):
                    self._write(self.token)
                    since = time.monotonic()
                    if stop.is_set():
                        return
        self._check_count(step)
        done = move_token(self.token, step.batch, step.generation)
        if self._rows or time.monotonic() - self._written_at > TOKEN_SECONDS:
            self._write(done)
        self.token = done
        self._ends |= step.ends

    def _take(self, rows: Sequence[msgspec.Struct], origins: Sequence[RowSource]) -> None:
        """Choose rows, and move the position behind them."""
        identity = origins[-1].identity
        self.token = msgspec.structs.replace(self.token, last=identity, rows=self.token.rows + len(rows))
        if self._delivery.where is None and self._delivery.select is None:
            self._rows += map(DeliveredRow, rows, origins)
            return
        for row, origin in zip(rows, origins, strict=True):
            try:
                value = self._delivery.choose(row, origin)
            except Exception as error:  # the user's function: whatever it raises
                raise self._make_poison(origin.identity, f"{type(error).__name__}: {error}") from error
            if value is not None:
                if not isinstance(value, msgspec.Struct):
                    raise self._make_poison(origin.identity, f"select returned no Struct: {type(value).__name__}")
                self._rows.append(DeliveredRow(value, origin))

    def _make_poison(self, row: RowIdentity, problem: str) -> DeliveryHalted:
        step = f"correct the function; then lockstep deliver {self._delivery.name}"
        return DeliveryHalted(self._delivery.name, HaltReason.ROW, f"row {row}: {problem}", next_step=step)

    def _write(self, token: DeliveryToken) -> None:
        rows = self._rows
        token = msgspec.structs.replace(token, delivered=token.delivered + len(rows), written_at=datetime.now(UTC))
        try:
            self.connection.write(rows, token)
        except RowUndeliverable as error:
            reason = HaltReason.ROW
            step = error.next_step
            raise DeliveryHalted(self._delivery.name, reason, error.problem, next_step=step) from error
        self.token = msgspec.structs.replace(self.token, delivered=token.delivered)
        self._rows = []
        self._written_at = time.monotonic()
        self._count(len(rows), token)

    def _check_count(self, step: Step) -> None:
        """Refuse to end a step whose rows are not those that the ledger counts; an erasure has removed some."""
        found = self.token.rows
        if found == step.rows or (self.token.erasure and found < step.rows):
            return
        evidence = f"batches {step.after + 1} to {step.batch}: {found} rows in the table, {step.rows} in the ledger"
        verify = f"lockstep verify {self._folders.stream} names the difference"
        raise DeliveryHalted(self._delivery.name, HaltReason.INCOMPLETE, evidence, next_step=verify)


def read_version(folders: StreamFolders, log: OutputLog) -> VersionRead:
    """The newest version of a table, with the token of its log entry."""
    base = log.base()
    return VersionRead(base, _read_entry(folders, base.version))


def make_read_history(folders: StreamFolders, token: DeliveryToken) -> SourceHistory:
    """The history of a table up to a token, as status, alarms and proof know it."""
    last = delta_log.find_head_of_batch(folders.table, token.batch) if token.batch else None
    at = None if last is None else delta_log.find_entry_time(folders.table, last.batch_version)
    return SourceHistory(
        stream=folders.stream,
        table_id=token.table_id,
        generation=token.generation,
        erasure=token.erasure,
        version=token.version,
        token=token.entry,
        batch=token.step_batch,
        batch_generation=token.step_generation,
        committed_at=at,
    )


def _read_entry(folders: StreamFolders, version: int) -> str:
    entry = delta_log.read_entry(folders.table, version)
    return (entry.token if entry is not None else None) or ""


def _make_place(row: RowIdentity) -> tuple[TopicIdPartition, RowPlace]:
    return TopicIdPartition(row.topic_id, row.partition), RowPlace(row.emit_offset, row.row)


def _cut(placed: Iterable[PlacedRows], rows: int) -> Iterator[PlacedRows]:
    """Pieces of so many rows, at most."""
    for each in placed:
        for start in range(0, each.rows.num_rows, rows):
            yield each._replace(rows=each.rows.slice(start, rows))


def _read_ahead(values: Iterator[T]) -> Generator[T]:
    """Make the next value in a thread, while the target is awaited."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, values, None)
        while (value := coming.result()) is not None:
            coming = thread.submit(next, values, None)
            yield value


def _make_position(declared: DeclaredDelivery, history: SourceHistory) -> FollowerPosition:
    return FollowerPosition(
        kind=KIND,
        name=declared.delivery.name,
        command=f"lockstep deliver {declared.delivery.name}",
        reads=Reads.COMMITS,
        rebuilds=False,
        sources=(history,),
        last_run=datetime.now(UTC),
    )
