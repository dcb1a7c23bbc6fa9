"""The work of a delivery under one claim of its target: read the table, choose rows, write them with the token."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, cast

import msgspec

from lockstep.declare.delivery import UndeliverableRows
from lockstep.declare.delivery_target import (
    DeliveredRow,
    DeliveryToken,
    RowIdentity,
    RowSource,
    RowUndeliverable,
    TargetConnection,
)
from lockstep.errors import format_some
from lockstep.features.delivery.changeable_target import ChangeableTarget
from lockstep.features.delivery.changes import HaltReason, describe_remedies
from lockstep.features.delivery.dead_letters import (
    DEAD_MAX,
    delete_other_letters,
    list_kept,
    make_dead_row,
    write_dead_letter,
)
from lockstep.features.delivery.decode import RowDecoder
from lockstep.features.delivery.erasures import Erasures, read_erasures
from lockstep.features.delivery.position import (
    DeliveryHalted,
    HaltFound,
    VersionRead,
    find_halt,
    mark_version,
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
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.features.delivery.undone import find_newest_batch, move_token
from lockstep.model.position import TopicIdPartition
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.row_order import RowPlace

T = TypeVar("T")
TOKEN_SECONDS = 5.0
"""Batches without a row to deliver move the token once in so many seconds."""


@dataclass(frozen=True)
class ClaimReports:
    """Take the progress of a claim.

    Attributes:
        count: Takes the number of rows of each write, and its token.
        note: Takes an event of the history: its name, the batch, and what happened.
    """

    count: Callable[[int, DeliveryToken], None]
    note: Callable[[str, int, str], None]


class Claim:
    """The work under one claim of the target."""

    def __init__(
        self,
        declared: DeclaredDelivery,
        folders: StreamFolders,
        decoder: RowDecoder,
        connection: TargetConnection,
        reports: ClaimReports,
    ) -> None:
        """Write nothing yet.

        Args:
            declared: The delivery and its stream.
            folders: Folders of the stream.
            decoder: Decodes its rows.
            connection: The claimed target.
            reports: Take the progress.
        """
        self._delivery = declared.delivery
        self._folders = folders
        self._decoder = decoder
        self.connection = connection
        self._reports = reports
        self._code = declared.delivery.digest_code()
        self._ends = dict[TopicIdPartition, RowPlace]()
        self._rows = list[DeliveredRow]()
        self._written_at = 0.0
        self._erased_by = 0
        self._erasures = Erasures()

    def start(self, token: DeliveryToken, read: VersionRead) -> None:
        """Write the token of the claim, and read the ends of its batch."""
        self.token = token
        self._mark_version(read)
        self._write(self.token)
        self._ends = read_ends(self._folders, read.base.head, self.token.batch)

    def _mark_version(self, read: VersionRead) -> None:
        """Mark the version in the token, and move it behind the rows that the target has."""
        before = self.token
        self.token = mark_version(before, read, self._code)
        if self.token.last != before.last:
            self.token = count_again(self._folders, self.token, read)
        if self.token.batch != before.batch:
            self._ends = read_ends(self._folders, read.base.head, self.token.batch)

    @property
    def epoch(self) -> int:
        """Number of the claim, as the target has it."""
        return 0 if self.connection.token is None else self.connection.token.epoch

    def find_halt(self, token: DeliveryToken, read: VersionRead) -> HaltFound | None:
        """Find a reason to halt in the history of the table."""
        return find_halt(token, read.base.head, _read_entry(self._folders, token.version))

    def make_halt(self, halt: HaltFound) -> DeliveryHalted:
        """The error of a halt, with its remedies for this target."""
        step = describe_remedies(self._delivery, halt.reason, halt.batch)
        return DeliveryHalted(self._delivery.name, halt.reason, halt.evidence, next_step=step)

    def read_next(self, log: OutputLog) -> VersionRead:
        """Read the newest version, after its history was compared with the position.

        Raises:
            DeliveryHalted: The history needs an operator.
        """
        read = read_version(self._folders, log)
        halt = self.find_halt(self.token, read)
        if halt is not None:
            raise self.make_halt(halt)
        return read

    def take_erasures(self, token: DeliveryToken, read: VersionRead) -> DeliveryToken:
        """Delete the rows of sessions that were erased since the token; an operator erases those that stay.

        Returns:
            The token with these erasures; the same if there are none, or if the ledger does not have them yet.
        """
        newest = _find_erasure(read.base.head)
        if newest <= token.erasure or token.table_id != read.base.head.table_id:
            return token
        if newest > find_readable_batch(self._folders, read.base.head):
            return token
        erased = read_erasures(self._folders, max(token.erasure, token.step_batch), newest)
        root = self._folders.root
        dead = list_kept(root, self._delivery.name, token.dead, erased.sessions, token.table_id)
        changed = msgspec.structs.replace(token, erasure=newest, dead=dead)
        deleted: int | None = None
        if isinstance(self.connection, ChangeableTarget):
            deleted = self.connection.erase(erased.sessions, changed)
        if deleted is None:
            self.connection.write((), changed)
        delete_other_letters(root, self._delivery.name, dead)
        self._note_erasures(erased, token, deleted)
        return changed if self.connection.token is None else self.connection.token

    def _note_erasures(self, erased: Erasures, token: DeliveryToken, deleted: int | None) -> None:
        digests = format_some(sorted({f"session with digest {each.digest}" for each in erased.sessions}))
        rows = f"its rows up to batch {find_newest_batch(token)} are in the target, to be erased there"
        if deleted is not None:
            rows = f"{deleted} rows were deleted in {self._delivery.target.address}"
        self._reports.note("erasure", token.batch, f"{digests}: {rows}")

    def deliver_up_to(self, read: VersionRead, stop: Callable[[], bool]) -> None:
        """Deliver all batches of a version, or up to a stop."""
        head = read.base.head
        until = find_readable_batch(self._folders, head)
        self.token = self.take_erasures(self.token, read)
        if (self.token.last is None and self.token.batch >= until) or self.token.erasure < _find_erasure(head):
            return
        snapshot = TableSnapshot(self._folders, read.base)
        self._mark_version(read)
        self._read_erasures(until)
        while self.token.last is not None:
            self.token = count_again(self._folders, self.token, read) if self._erasures.rows else self.token
            step = plan_step(self._folders, head, self.token.batch, self.token.step_batch, self._ends)
            self._deliver_step(step, snapshot, stop)
            if stop():
                return
            self._mark_version(read)
        joins = self._delivery.target.joins_batches
        for step in plan_steps(self._folders, head, self.token.batch, until, self._ends, joins=joins):
            if stop():
                return
            self._deliver_step(step, snapshot, stop)

    def _read_erasures(self, until: int) -> None:
        """Read the erased rows of the batches that are to be delivered."""
        if self.token.erasure > max(self.token.batch, self._erased_by):
            self._erasures = read_erasures(self._folders, self.token.batch, until)
            self._erased_by = self.token.erasure

    def settle(self) -> None:
        """Write the token if it has moved since the last write."""
        if self.connection.token is None or self.connection.token.batch != self.token.batch:
            self._write(self.token)

    def _deliver_step(self, step: Step, snapshot: TableSnapshot, stop: Callable[[], bool]) -> None:
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
                    if stop():
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
            except Exception as error:  # noqa: BLE001  # the user's function: whatever it raises
                self._bury(DeliveredRow(row, origin), self._make_poison(origin, f"{type(error).__name__}: {error}"))
                continue
            if value is None:
                continue
            if isinstance(cast("object", value), msgspec.Struct):
                self._rows.append(DeliveredRow(value, origin))
            else:
                problem = f"select returned no Struct: {type(value).__name__}"
                self._bury(DeliveredRow(row, origin), self._make_poison(origin, problem))

    def _make_poison(self, origin: RowSource, problem: str) -> RowUndeliverable:
        step = f"correct the function; then lockstep deliver {self._delivery.name}"
        return RowUndeliverable(origin.identity, problem, next_step=step)

    def _bury(self, row: DeliveredRow, poison: RowUndeliverable) -> None:
        """Leave a row out as a dead letter, if that is declared. Raises DeliveryHalted."""
        name = self._delivery.name
        step = poison.next_step
        if self._delivery.undeliverable is UndeliverableRows.HALT:
            raise DeliveryHalted(name, HaltReason.ROW, poison.problem, next_step=step, row=poison.row) from poison
        if len(self.token.dead) >= DEAD_MAX:
            problem = f"{poison.problem}; there are {DEAD_MAX} dead letters"
            step = f"correct the cause; then lockstep delivery rebuild {name} --replace"
            raise DeliveryHalted(name, HaltReason.ROW, problem, next_step=step, row=poison.row) from poison
        write_dead_letter(self._folders.root, name, row.value, row.origin, poison.problem)
        self.token = msgspec.structs.replace(self.token, dead=(*self.token.dead, make_dead_row(row.origin)))

    def _write(self, token: DeliveryToken) -> None:
        while True:
            rows = self._rows
            delivered = token.delivered + len(rows)
            now = datetime.now(UTC)
            stamped = msgspec.structs.replace(token, delivered=delivered, dead=self.token.dead, written_at=now)
            try:
                self.connection.write(rows, stamped)
            except RowUndeliverable as error:
                poison = next((each for each in rows if each.origin.identity == error.row), None)
                if poison is None:
                    reason = HaltReason.ROW
                    raise DeliveryHalted(
                        self._delivery.name, reason, error.problem, next_step=error.next_step, row=error.row
                    ) from error
                self._bury(poison, error)
                self._rows = [each for each in rows if each is not poison]
            else:
                break
        token = stamped
        self.token = msgspec.structs.replace(self.token, delivered=token.delivered)
        self._rows = []
        self._written_at = time.monotonic()
        self._reports.count(len(rows), token)

    def _check_count(self, step: Step) -> None:
        """Refuse to end a step whose rows are not those that the ledger counts, without the erased ones."""
        found = self.token.rows
        erased = self._erasures.count(step.after, step.batch)
        if found == step.rows - erased:
            return
        counted = f"{step.rows} in the ledger" + (f", of which {erased} are erased" if erased else "")
        evidence = f"batches {step.after + 1} to {step.batch}: {found} rows in the table, {counted}"
        verify = f"lockstep verify {self._folders.stream} names the difference"
        raise DeliveryHalted(self._delivery.name, HaltReason.INCOMPLETE, evidence, next_step=verify)


def count_again(folders: StreamFolders, token: DeliveryToken, read: VersionRead) -> DeliveryToken:
    """Count the rows of the step in progress again, up to the last row that is done."""
    if token.last is None:
        return token
    ends = read_ends(folders, read.base.head, token.batch)
    step = plan_step(folders, read.base.head, token.batch, token.step_batch, ends)
    last = _make_place(token.last)
    done = sum(each.rows.num_rows for each in TableSnapshot(folders, read.base).read_rows(step))
    left = sum(each.rows.num_rows for each in TableSnapshot(folders, read.base).read_rows(step, last))
    return msgspec.structs.replace(token, rows=done - left)


def _find_erasure(head: Head) -> int:
    """The batch of the newest erasure; 0 for none."""
    return 0 if head.erasure is None else head.erasure.batch


def read_version(folders: StreamFolders, log: OutputLog) -> VersionRead:
    """The newest version of a table, with the token of its log entry."""
    base = log.base()
    return VersionRead(base, _read_entry(folders, base.version))


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
