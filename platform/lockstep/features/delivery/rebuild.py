"""Rebuilds the target of a delivery: undone rows are deleted, or all rows are replaced by those of the table."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from lockstep.declare.delivery_target import DeliveryToken, TargetConnection, TargetRefused
from lockstep.features.delivery.changeable_target import ChangeableTarget
from lockstep.features.delivery.changes import HaltReason, TargetKind, find_kind
from lockstep.features.delivery.claim import Claim, ClaimReports, count_again, read_version
from lockstep.features.delivery.dead_letters import delete_other_letters
from lockstep.features.delivery.decode import RowDecoder
from lockstep.features.delivery.deliver import make_position, make_read_history
from lockstep.features.delivery.events import record_claim, record_event
from lockstep.features.delivery.position import (
    VersionRead,
    accept_halt,
    make_first_token,
    mark_version,
)
from lockstep.features.delivery.status import read_source_position
from lockstep.features.delivery.steps import find_readable_batch
from lockstep.features.delivery.stop_order import RebuildOrder, StopOrder, read_order, stop_for_rebuild
from lockstep.features.delivery.targets import DeclaredDelivery, open_target
from lockstep.features.delivery.undone import forget_undone, move_token
from lockstep.operations.followers import FollowerStanding, judge_standing
from lockstep.operations.plan_frame import Description, Labelled, Obstacle, Plan, Prepared, drop_accepted, make_changed
from lockstep.operations.stream_table import NoTable, has_claimed_table, open_table
from lockstep.settings import Settings
from lockstep.table.follower_positions import SourceHistory, find_generation, write_position
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders


class RebuildMethod(StrEnum):
    """How a target is brought back to its table."""

    RETRACT = "deletes the rows of undone batches; all other rows stay"
    REPLACE = "replaces all rows by those of the table, in one transaction"
    CORRECT = "writes the last row of each key that differs, and tombstones of all other keys"
    REPEAT = "sends all rows of the table again; the receiver ignores those whose ids it has"
    EMPTY = "deletes all messages of the topic, then delivers all rows of the table; consumers read them again"


METHODS: Final = {
    TargetKind.TOPIC: RebuildMethod.EMPTY,
    TargetKind.COMPACTED: RebuildMethod.CORRECT,
    TargetKind.WEBHOOK: RebuildMethod.REPEAT,
}
"""Methods of a whole rebuild, other than `REPLACE`."""


class RebuildReason(StrEnum):
    """Why a rebuild is refused."""

    UNABLE = "the target cannot be rebuilt"
    DROPPED = "retention has dropped rows"


class TargetRebuildPlan(Plan, frozen=True, kw_only=True):
    """The rebuild of a target.

    Attributes:
        name: Name of the delivery.
        target: The target.
        method: How.
        after: Rows up to this batch stay as they are, or are not in the table; 0 for none.
        batch: The last batch that the target has afterwards.
        order: The order that stops the delivery meanwhile.
        resumes: A rebuild did not end, and is repeated with its options.
    """

    PLAN: ClassVar[str] = "the rebuild of the delivery"

    name: str
    target: str
    method: RebuildMethod
    after: int
    batch: int
    order: RebuildOrder
    resumes: bool

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("target", self.target),
            Labelled("rebuild", self.method.value),
            Labelled("ends a rebuild that was killed", self.resumes),
            Labelled("rows of batches after", self.after),
            Labelled("up to batch", self.batch),
        )
        return self.make_description(f"rebuild of delivery {self.name}", facts)


class TargetRebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """A target that was rebuilt.

    Attributes:
        name: Name of the delivery.
        target: The target.
        deleted: Rows of undone batches that were deleted; None if all rows were replaced.
        rows: Rows that were written.
        batch: Rows of all batches up to this number are in the target.
    """

    name: str
    target: str
    deleted: int | None
    rows: int
    batch: int

    def describe(self) -> Description:
        """Return its description."""
        deleted = "all" if self.deleted is None else self.deleted
        facts = (
            Labelled("target", self.target),
            Labelled("deleted rows", deleted),
            Labelled("written rows", self.rows),
            Labelled("batch", self.batch),
        )
        return Description(title=f"{self.name}: rebuilt", facts=facts, next_steps=(f"lockstep deliver {self.name}",))


def prepare_rebuild(
    declared: DeclaredDelivery, settings: Settings, *, replaces: bool = False, accept_dropped: bool = False
) -> Prepared[TargetRebuildPlan, TargetRebuilt]:
    """Plan the rebuild of the target of a delivery. The plan reads the position in the table root, not the target.

    A rebuild that was killed is repeated with its options.

    Args:
        declared: The delivery and its stream.
        settings: Kafka and the table root.
        replaces: Replace all rows, also if it is enough to delete those of undone batches.
        accept_dropped: Replace all rows although the table has no longer all of them.

    Raises:
        NoTable: The stream has no table.
        TableError: The ledger is behind the table.

    The commit raises:
        Refused: The plan has obstacles, or the target has another position than the plan.
        DeliveryHalted: A row cannot be delivered.
        TargetRefused: The target cannot be used.
        TargetInterrupted: The target did not answer.
        TableError: The table or its ledger is damaged.
    """
    folders = StreamFolders(declared.stream.name, settings.table_root)
    if not has_claimed_table(folders):
        raise NoTable(folders.stream, folders.root)
    read = read_version(folders, open_table(folders))
    plan = _make_plan(declared, folders, read.base.head, RebuildOrder(replaces, accept_dropped))
    return Prepared(plan, lambda: _Rebuild(declared, settings, plan).run())


def _continue_order(known: StopOrder | None, wanted: RebuildOrder) -> RebuildOrder:
    """The order of a rebuild, after that of a rebuild that did not end, or of an operator."""
    if known is None:
        return wanted
    if known.rebuild is None:
        return msgspec.structs.replace(wanted, stays_stopped=True)
    return RebuildOrder(
        replaces=wanted.replaces or known.rebuild.replaces,
        accept_dropped=wanted.accept_dropped or known.rebuild.accept_dropped,
        stays_stopped=known.rebuild.stays_stopped,
        retracts=known.rebuild.retracts,
    )


def _make_plan(
    declared: DeclaredDelivery, folders: StreamFolders, head: Head, wanted: RebuildOrder
) -> TargetRebuildPlan:
    delivery = declared.delivery
    known_order = read_order(folders.root, delivery.name)
    order = _continue_order(known_order, wanted)
    kind = find_kind(delivery)
    known = read_source_position(folders.root, delivery.name, folders.stream)
    obstacles = list[Obstacle]()
    dropped = 0 if head.retention is None else head.retention.batch
    method = METHODS.get(kind, RebuildMethod.REPLACE)
    after = dropped
    is_undone = known is not None and judge_standing(known, head) is FollowerStanding.UNDONE
    may_retract = kind is TargetKind.APPENDED and not order.replaces
    if known is not None and may_retract and (is_undone or order.retracts):  # killed after its position was written
        method = RebuildMethod.RETRACT
        after = _find_common(known, head)
    elif dropped:
        problem = f"the table has no rows of batches up to {dropped}: the target would lose them"
        step = f"lockstep delivery rebuild {delivery.name} --accept-dropped"
        obstacles.append(Obstacle(RebuildReason.DROPPED, problem, step))
    if kind is TargetKind.OWN:
        step = "empty it yourself, with its token; the next run delivers all rows"
        obstacles.append(
            Obstacle(RebuildReason.UNABLE, f"lockstep cannot delete rows in {delivery.target.address}", step)
        )
    return TargetRebuildPlan(
        stream=folders.stream,
        obstacles=drop_accepted(obstacles, {RebuildReason.DROPPED: order.accept_dropped}),
        name=delivery.name,
        target=delivery.target.address,
        method=method,
        after=after,
        batch=find_readable_batch(folders, head) if method is not RebuildMethod.RETRACT else after,
        order=msgspec.structs.replace(order, retracts=method is RebuildMethod.RETRACT),
        resumes=known_order is not None and known_order.rebuild is not None,
    )


def _find_common(known: SourceHistory, head: Head) -> int:
    """The last batch that target and table have in common, as of the last run."""
    earlier = {each: last for each, last in head.valid_batches.items() if each <= known.batch_generation}
    return max((min(last, known.batch) for last in earlier.values()), default=0)


class _Rebuild:
    """One rebuild. The delivery is stopped meanwhile, so that no run claims the target."""

    def __init__(self, declared: DeclaredDelivery, settings: Settings, plan: TargetRebuildPlan) -> None:
        self._declared = declared
        self._delivery = declared.delivery
        self._settings = settings
        self._root = settings.table_root
        self._folders = StreamFolders(declared.stream.name, settings.table_root)
        self._plan = plan
        self._rows = 0

    def run(self) -> TargetRebuilt:
        """Stop the delivery, rebuild its target, and start it again."""
        with stop_for_rebuild(self._root, self._delivery.name, self._plan.after, self._plan.order):
            return self._run_stopped()

    def _run_stopped(self) -> TargetRebuilt:
        is_whole = self._plan.method is not RebuildMethod.RETRACT
        deleted: int | None = None
        connection = open_target(self._declared, self._settings, rebuilds=is_whole)
        try:
            if not isinstance(connection, ChangeableTarget):
                raise TargetRefused(self._delivery.name, "it cannot be rebuilt", next_step="deliver by another name")
            read = read_version(self._folders, open_table(self._folders))
            if is_whole:
                token = self._replace(connection, read)
            else:
                token, deleted = self._retract(connection, read)
        finally:
            connection.close()
        delete_other_letters(self._root, self._delivery.name, token.dead)
        record_claim(self._root, self._delivery.name, token.epoch)
        removed = "all" if deleted is None else str(deleted)
        detail = f"{self._plan.method.name.lower()}: {removed} rows deleted, {self._rows} written"
        record_event(self._root, self._delivery.name, "rebuilt", token.batch, detail)
        write_position(self._root, make_position(self._declared, make_read_history(self._folders, token)))
        return TargetRebuilt(
            name=self._delivery.name,
            target=self._delivery.target.address,
            deleted=deleted,
            rows=self._rows,
            batch=token.batch,
        )

    def _retract(self, connection: ChangeableTarget, read: VersionRead) -> tuple[DeliveryToken, int]:
        token = connection.token
        if token is None:
            raise make_changed(self._folders.stream, self._plan.PLAN, "the target has no position")
        claim = self._make_claim(connection)
        halt = claim.find_halt(token, read)
        if halt is None and self._plan.resumes:
            return token, 0  # it was killed after its write
        if halt is None or halt.reason is not HaltReason.UNDONE:
            found = "no undone rows" if halt is None else halt.evidence
            raise make_changed(self._folders.stream, self._plan.PLAN, f"the target has {found}")
        token = claim.take_erasures(token, read)
        accepted = accept_halt(token, read.base.head, halt.reason)
        kept = count_again(self._folders, forget_undone(accepted, read.base.head), read)
        marked = mark_version(kept, read, self._delivery.digest_code())
        deleted = connection.retract(read.base.head.valid_batches, marked)
        token = connection.token
        if deleted is None or token is None:
            raise make_changed(self._folders.stream, self._plan.PLAN, "undone rows have replaced earlier rows")
        return token, deleted

    def _replace(self, connection: ChangeableTarget, read: VersionRead) -> DeliveryToken:
        """Deliver all rows of the table again; they are counted as in a run."""
        first = self._make_first(connection.token, read)
        with connection.rebuild(first) as writer:
            claim = self._make_claim(writer)
            claim.start(first, read)
            claim.deliver_up_to(read, lambda: False)
            claim.settle()
        return claim.token if connection.token is None else connection.token

    def _make_first(self, token: DeliveryToken | None, read: VersionRead) -> DeliveryToken:
        """The position before the first row: as of the first start of the delivery, on the same table."""
        first = make_first_token(self._delivery, self._folders.stream, read)
        if token is None or token.table_id != read.base.head.table_id:
            return first
        dropped = 0 if read.base.head.retention is None else read.base.head.retention.batch
        batch = max(dropped, min(token.since, read.base.head.batch))
        first = msgspec.structs.replace(first, since=batch, written_at=datetime.now(UTC))
        return move_token(first, batch, find_generation(read.base.head, batch))

    def _make_claim(self, connection: TargetConnection) -> Claim:
        reports = ClaimReports(self._count, self._note)
        return Claim(self._declared, self._folders, RowDecoder(self._declared.stream.types.row), connection, reports)

    def _count(self, rows: int, token: DeliveryToken) -> None:
        del token
        self._rows += rows

    def _note(self, event: str, batch: int, detail: str) -> None:
        record_event(self._root, self._delivery.name, event, batch, detail)
