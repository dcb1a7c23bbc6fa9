"""Runs a delivery: rows from the table to the target, each write with its token."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from lockstep.declare.delivery import refuse_shared
from lockstep.declare.delivery_target import (
    DeliveryToken,
    TargetInterrupted,
)
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.delivery.changes import HaltReason, Remedy, list_remedies
from lockstep.features.delivery.claim import Claim, ClaimReports, count_again, read_version
from lockstep.features.delivery.dead_letters import delete_other_letters
from lockstep.features.delivery.decode import RowDecoder
from lockstep.features.delivery.events import read_history, record_claim, record_event
from lockstep.features.delivery.position import (
    KIND,
    DeliveryHalted,
    VersionRead,
    accept_halt,
    make_first_token,
)
from lockstep.features.delivery.stop_order import StopSwitch
from lockstep.features.delivery.targets import DeclaredDelivery, open_target
from lockstep.operations.durations import compute_back_off
from lockstep.operations.followers import record_failure
from lockstep.operations.plan_frame import Description, Labelled
from lockstep.operations.stream_table import has_claimed_table, open_table
from lockstep.settings import Settings
from lockstep.table import delta_log
from lockstep.table.follower_positions import (
    FollowerPosition,
    Reads,
    SourceHistory,
    make_unread_history,
    write_position,
)
from lockstep.table.layout import StreamFolders

LOG = logging.getLogger("lockstep")
ATTEMPTS_MAX = 5
"""Claims in a row without progress after which a bounded run ends; a run that follows continues."""
BACK_OFF_SECONDS = 1.0
BACK_OFF_SECONDS_MAX = 60.0
"""Pause after an interruption by the target, doubled with each further one without progress."""
POLL_SECONDS = 0.5
"""How often a run that follows polls for new batches."""
POSITION_SECONDS = 10.0
"""How often it writes its position for status and alarms."""


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
        TargetInterrupted: The target did not answer, `ATTEMPTS_MAX` times in a row or until `stop`; not if it follows.
        TableError: The table or its ledger is damaged.
    """
    unread = make_position(declared, make_unread_history(declared.stream.name))
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
        while not self._stop.is_set():
            before = self.result.writes
            if not has_claimed_table(self._folders):
                if not follows:
                    return msgspec.structs.replace(self.result, is_waiting=True)
                self._stop.wait(POLL_SECONDS)
                continue
            try:
                self._claim_and_follow(follows=follows, accepts=accepts)
            except TargetInterrupted as interrupted:
                has_written = self.result.writes > before + 1
                failed = 1 if has_written else failed + 1
                self._pause_after(interrupted, failed, follows=follows)
            except DeliveryHalted as halted:
                detail = halted.problem if halted.reason is not HaltReason.ROW else halted.reason.value
                record_event(self._root, self._delivery.name, "halted", self.result.batch, detail)
                raise
            else:
                break
        return msgspec.structs.replace(self.result, is_stopped=self._stop.is_ordered)

    def _pause_after(self, interrupted: TargetInterrupted, failed: int, *, follows: bool) -> None:
        """Pause before the next claim. Raises the interruption of a run that has no further one, unless it follows."""
        if not follows and failed >= ATTEMPTS_MAX:
            raise interrupted
        pause = compute_back_off(failed - 1, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)
        has_to_end = self._stop.wait(max(pause, interrupted.retry_seconds))
        if has_to_end and not follows and not self._stop.is_ordered:
            raise interrupted  # an end without an error would look like a success

    def _claim_and_follow(self, *, follows: bool, accepts: bool) -> None:
        connection = open_target(self._declared, self._settings)
        try:
            log = open_table(self._folders)
            read = read_version(self._folders, log)
            reports = ClaimReports(self._count, self._note)
            claim = Claim(self._declared, self._folders, self._decoder, connection, reports)
            claim.start(self._find_start(claim, read, accepts=accepts), read)
            delete_other_letters(self._root, self._delivery.name, claim.token.dead)
            record_claim(self._root, self._delivery.name, claim.epoch)
            while True:
                claim.deliver_up_to(claim.read_next(log), self._stop.is_set)
                if not follows or self._stop.wait(POLL_SECONDS):
                    claim.settle()
                    self._write_position(claim.token)
                    return
                self._write_position_if_due(claim.token)
        finally:
            connection.close()

    def _find_start(self, claim: Claim, read: VersionRead, *, accepts: bool) -> DeliveryToken:
        """Compare the position with the table, and accept a halt. Raises DeliveryHalted."""
        known = claim.connection.token
        if known is None:
            started_after = read_history(self._root, self._delivery.name).started_after
            token = make_first_token(self._delivery, self._folders.stream, read, started_after)
        else:
            token = claim.take_erasures(known, read)
        self.result = msgspec.structs.replace(self.result, claims=self.result.claims + 1, batch=token.batch)
        halt = None if known is None else claim.find_halt(token, read)
        detail = "" if known is not None else f"first start, after batch {token.batch}"
        event = "claimed"
        if halt is not None and accepts and Remedy.ACCEPT in list_remedies(self._delivery, halt.reason):
            token = count_again(self._folders, accept_halt(token, read.base.head, halt.reason), read)
            event = "accepted"
            detail = f"{halt.reason.value}: {halt.evidence}"
        elif halt is not None:
            raise claim.make_halt(halt)
        self._note_restored(known, token)
        if event != "claimed" or known is None:
            record_event(self._root, self._delivery.name, event, token.batch, detail)
        return token

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

    def _note(self, event: str, batch: int, detail: str) -> None:
        record_event(self._root, self._delivery.name, event, batch, detail)

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
        write_position(self._root, make_position(self._declared, make_read_history(self._folders, token)))
        self._position_at = time.monotonic()


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
        complete_batch=token.batch,
    )


def make_position(declared: DeclaredDelivery, history: SourceHistory) -> FollowerPosition:
    """The position of a delivery, as status, alarms and plans know it."""
    return FollowerPosition(
        kind=KIND,
        name=declared.delivery.name,
        command=f"lockstep deliver {declared.delivery.name}",
        reads=Reads.COMMITS,
        rebuilds=False,
        sources=(history,),
        last_run=datetime.now(UTC),
    )
