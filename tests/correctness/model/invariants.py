"""The invariants of the commit protocol, on the worlds of its model."""

from __future__ import annotations

from tests.correctness.model.protocol import Kind, World, visible


def broken(world: World) -> str | None:  # noqa: C901, PLR0911  # the list of the invariants, one after another
    """Return the invariant that does not hold, or None if all hold."""
    batches = [entry for entry in world.log if entry.kind in {Kind.BATCH, Kind.REWIND}]
    epoch = closed = 0
    for entry in world.log:
        if entry.kind is Kind.BATCH and entry.head.epoch != epoch:
            return "a fenced writer is visible"
        if entry.kind is Kind.BATCH and entry.hour <= closed:
            return "an hour that was closed has grown"
        if entry.head.epoch < epoch:
            return "an epoch came back"
        epoch = entry.head.epoch
        closed = max(closed, entry.head.closed)
    if [entry.head.batch for entry in batches] != list(range(1, len(batches) + 1)):
        return "a batch is lost or doubled"
    for at, entry in enumerate(world.log):
        if entry.kind is Kind.BATCH and entry.start != len(visible(world.log[:at])):
            return "offsets are lost or doubled"
        if entry.kind is Kind.REWIND and entry.start != len(visible(world.log[: at + 1])) - 1:
            return "a rewind undid another batch than it was planned for"
    named = [(entry.head.batch, entry.start) for entry in batches]
    if list(world.ledger) != named[: len(world.ledger)]:
        return "a side table holds what no commit names"
    if len(world.ledger) < len(named) - 1:
        return "more than the newest batch is missing in a side table"
    return None
