"""Changes of the past of a table, cell by cell: a delivery continues, or halts with a reason."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lockstep.delivery import Delivery, DeliveryToken, FirstRows, KafkaTopic, RowIdentity
from lockstep.features.delivery.changes import HaltReason
from lockstep.features.delivery.position import (
    VersionRead,
    accept_halt,
    find_common_batch,
    find_halt,
    make_first_token,
    mark_version,
)
from lockstep.features.delivery.undone import move_token
from lockstep.table.commit import Base
from lockstep.table.head import Erasure, Head, Lineage, Retention

TABLE = Head(stream="s", cluster_id="c", table_id="t", batch=20, epoch=1)
LAST = RowIdentity("id", 0, 5, 0)


def token_at(batch: int, head: Head = TABLE, generation: int = 1) -> DeliveryToken:
    """Return a position between two steps."""
    delivery = Delivery(name="moves", target=KafkaTopic(topic="moves"))
    first = make_first_token(delivery, "s", VersionRead(Base(7, head), "entry"))
    return move_token(first, batch, generation)


def rewound(to: int, batch: int = 25, *, head: Head = TABLE) -> Head:
    """Return the head after a rewind and some batches."""
    lineage = (*(each for each in head.lineage if each.last_batch <= to), Lineage(head.generation, to))
    return replace(head, generation=head.generation + 1, lineage=lineage, batch=batch)


RETENTION = Retention("2026-01-01T00", 12, 1.0, "old")
ERASURE = Erasure(digest="d", topic="", batch=21, version=9, at=1.0, cause="asked")
IN_STEP = replace(token_at(10), step_batch=15, last=LAST, rows=3)

CELLS = {
    "more batches": (token_at(20), replace(TABLE, batch=30), None),
    "an added column, a compaction": (token_at(20), TABLE, None),
    "a rewind behind the position": (token_at(8), rewound(8), None),
    "a rewind before the position": (token_at(9), rewound(8), HaltReason.UNDONE),
    "a rewind into a step in progress": (IN_STEP, rewound(12), HaltReason.UNDONE),
    "a rewind behind a step in progress": (IN_STEP, rewound(15), None),
    "a rewind to the beginning": (token_at(1), rewound(0), HaltReason.UNDONE),
    "two rewinds, the second to before the first": (
        mark_version(token_at(24, rewound(10), 2), VersionRead(Base(9, rewound(10)), ""), ""),
        replace(rewound(8), generation=3),
        HaltReason.UNDONE,
    ),
    "a promotion before the position": (token_at(9), rewound(8, 40), HaltReason.UNDONE),
    "retention of delivered rows": (token_at(12), replace(TABLE, retention=RETENTION), None),
    "retention of rows that are not delivered": (
        token_at(11),
        replace(TABLE, retention=RETENTION),
        HaltReason.DROPPED,
    ),
    "an erasure": (token_at(20), replace(TABLE, batch=21, erasure=ERASURE), None),
    "another table": (token_at(20), replace(TABLE, table_id="u"), HaltReason.REPLACED),
    "an older copy of the table": (token_at(20), replace(TABLE, batch=15), HaltReason.REPLACED),
    "an older copy before a rewind": (token_at(24, rewound(10), 2), TABLE, HaltReason.REPLACED),
}


@pytest.mark.parametrize("cell", CELLS)
def test_each_change_of_the_past_continues_or_halts(cell: str) -> None:
    token, head, reason = CELLS[cell]
    halt = find_halt(token, head, "entry")
    assert (None if halt is None else halt.reason) == reason


def test_a_table_with_another_entry_at_the_version_that_was_read_is_a_copy() -> None:
    halt = find_halt(token_at(20), replace(TABLE, batch=30), "another")
    assert (None if halt is None else halt.reason) is HaltReason.REPLACED
    assert find_halt(token_at(20), replace(TABLE, batch=30), "") is None  # the entry is cleaned up


def test_an_accepted_rewind_continues_after_the_last_common_batch() -> None:
    head = rewound(8)
    accepted = accept_halt(token_at(9), head, HaltReason.UNDONE)
    assert (accepted.batch, accepted.batch_generation, accepted.last) == (8, 1, None)
    assert find_halt(mark_version(accepted, VersionRead(Base(9, head), ""), ""), head, "") is None


def test_an_accepted_rewind_into_a_step_ends_it_with_the_last_common_batch() -> None:
    accepted = accept_halt(IN_STEP, rewound(12), HaltReason.UNDONE)
    assert (accepted.batch, accepted.step_batch, accepted.step_generation, accepted.last) == (10, 12, 1, LAST)


def test_after_a_rewind_back_to_an_undone_savepoint_the_common_batch_is_that_of_both() -> None:
    """Delivered: generation 1 up to batch 10, then generation 2. The table: generation 1 up to its savepoint at 15."""
    token = mark_version(token_at(24, rewound(10), 2), VersionRead(Base(9, rewound(10)), ""), "")
    head = replace(TABLE, generation=3, lineage=(Lineage(1, 15),), batch=40)
    assert find_common_batch(token, head) == 10
    assert accept_halt(token, head, HaltReason.UNDONE).batch == 10


def test_accepted_dropped_rows_are_left_out() -> None:
    accepted = accept_halt(token_at(3), replace(TABLE, retention=RETENTION), HaltReason.DROPPED)
    assert (accepted.batch, accepted.last) == (12, None)


@pytest.mark.parametrize("dropped", range(11, 21))
def test_inside_a_step_accepted_dropped_rows_are_left_out_and_its_delivered_rows_are_known(dropped: int) -> None:
    head = replace(TABLE, retention=replace(RETENTION, batch=dropped))
    accepted = accept_halt(IN_STEP, head, HaltReason.DROPPED)
    step = (15, LAST) if dropped < 15 else (dropped, None)
    assert (accepted.batch, accepted.batch_generation, accepted.step_batch, accepted.last) == (dropped, 1, *step)
    assert find_halt(accepted, head, "") is None


@pytest.mark.parametrize(("first", "batch"), [(FirstRows.ALL, 12), (FirstRows.NEW, 20)])
def test_a_delivery_starts_with_the_rows_of_the_table_or_behind_them(first: FirstRows, batch: int) -> None:
    delivery = Delivery(name="moves", target=KafkaTopic(topic="moves"), first_rows=first)
    token = make_first_token(delivery, "s", VersionRead(Base(7, replace(TABLE, retention=RETENTION)), ""))
    assert (token.since, token.batch, token.step_batch, token.epoch) == (batch, batch, batch, 0)
