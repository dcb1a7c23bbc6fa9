"""Status of deliveries, from their positions in the table root. Reads only; the target is not asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from lockstep.errors import LockstepError
from lockstep.features.delivery.dead_letters import list_dead_letters
from lockstep.features.delivery.deliver import list_deliveries
from lockstep.features.delivery.position import KIND
from lockstep.features.delivery.steps import find_readable_batch
from lockstep.features.delivery.stop_order import read_order
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.operations.followers import DeclaredFollowers, FollowerStanding, FollowerStatus, judge_standing
from lockstep.operations.plan_frame import Description, Labelled
from lockstep.operations.stream_table import has_table, open_table
from lockstep.table.follower_positions import FollowerName, SourceHistory, read_position
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders

HALTS = {
    FollowerStanding.UNDONE: "batches that it has delivered were undone",
    FollowerStanding.REPLACED: "the table is not the one that it has delivered",
}
"""Standings that the next run answers with a halt."""


class DeliveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of the next run of a delivery.

    Attributes:
        name: Name of the delivery.
        stream: Name of its stream.
        target: Where rows go.
        batch: Rows up to this batch are in the target, as of the last run; None before the first.
        behind: Batches that it has not delivered; None while the stream has no table.
        next_run: Effect of the next run.
        dead_letters: Rows that were left out, as of the last run.
        problem: Reason to act for an operator; empty without any.
    """

    name: str
    stream: str
    target: str
    batch: int | None
    behind: int | None
    next_run: str
    dead_letters: int = 0
    problem: str = ""

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("stream", self.stream),
            Labelled("target", self.target),
            Labelled("delivered up to batch", self.batch),
            Labelled("batches behind", self.behind),
            Labelled("the next run", self.next_run),
            Labelled("dead letters", self.dead_letters),
        )
        return Description(title=f"{self.name}: delivery", facts=facts, notes=(self.problem,) if self.problem else ())


def plan_delivery(declared: DeclaredDelivery, root: Path) -> DeliveryPlan:
    """Show how far a delivery is behind, as of its last run. Changes nothing.

    Raises:
        TableError: The table does not match its head, or the ledger is behind it.
    """
    plan = _plan_started(declared, root)
    letters = list_dead_letters(root, declared.delivery.name)
    if letters:
        problem = f"{len(letters)} rows are dead letters: {letters[0].parent}"
        problem = "; ".join(filter(None, (plan.problem, problem)))
        plan = msgspec.structs.replace(plan, dead_letters=len(letters), problem=problem)
    order = read_order(root, declared.delivery.name)
    if order is None:
        return plan
    next_run = f"stopped: lockstep delivery start {declared.delivery.name}"
    if order.rebuild is not None:
        next_run = (
            f"stopped by a rebuild that has not ended: lockstep delivery rebuild {declared.delivery.name} ends it"
        )
    return msgspec.structs.replace(plan, next_run=next_run)


def _plan_started(declared: DeclaredDelivery, root: Path) -> DeliveryPlan:
    delivery = declared.delivery
    stream = declared.stream.name
    plan = DeliveryPlan(
        name=delivery.name,
        stream=stream,
        target=delivery.target.address,
        batch=None,
        behind=None,
        next_run="waits for a table",
    )
    folders = StreamFolders(stream, root)
    if not has_table(folders):
        return plan
    head = open_table(folders).base().head
    until = find_readable_batch(folders, head)
    read = read_source_position(root, delivery.name, stream)
    if read is None or not read.table_id:
        first = delivery.first_rows.value
        return msgspec.structs.replace(plan, behind=until, next_run=f"starts with {first} rows")
    halt = _find_halt(read, head)
    behind = max(0, until - read.last_complete)
    next_run = f"halts: {halt}" if halt else f"delivers {_count_batches(behind)}"
    problem = f"{halt}; lockstep deliver {delivery.name} names the next step" if halt else ""
    return msgspec.structs.replace(plan, batch=read.last_complete, behind=behind, next_run=next_run, problem=problem)


def _find_halt(read: SourceHistory, head: Head) -> str:
    return HALTS.get(judge_standing(read, head), "")


def read_source_position(root: Path, name: str, stream: str) -> SourceHistory | None:
    """Read how far a delivery has read its stream, as of its last run; None before the first, or if it is damaged."""
    try:
        position = read_position(root, FollowerName(KIND, name))
    except msgspec.DecodeError:
        return None
    return None if position is None else position.find_source(stream)


def read_deliveries(declared: DeclaredFollowers) -> tuple[FollowerStatus, ...]:
    """Read the status of the deliveries of some streams."""
    return tuple(_read_one(each, declared.root) for each in _list(declared))


def _list(declared: DeclaredFollowers) -> Iterable[DeclaredDelivery]:
    return list_deliveries(declared.streams).values()


def _read_one(declared: DeclaredDelivery, root: Path) -> FollowerStatus:
    status = FollowerStatus(kind=KIND, name=declared.delivery.name, sources=(declared.stream.name,))
    try:
        plan = plan_delivery(declared, root)
    except LockstepError as error:
        return msgspec.structs.replace(status, problem=f"{error.problem}; {error.next_step}")
    return msgspec.structs.replace(status, behind=plan.behind, next_run=plan.next_run, problem=plan.problem)


def _count_batches(number: int) -> str:
    return "1 batch" if number == 1 else f"{number:,} batches"
