"""Random histories of a table without files: a row is never delivered twice, even if batches count again."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from lockstep.declare.delivery_target import DeadRow
from lockstep.delivery import Delivery, DeliveryToken, KafkaTopic, RowIdentity, UndoneStep
from lockstep.features.delivery.changes import HaltReason
from lockstep.features.delivery.position import VersionRead, accept_halt, find_halt, make_first_token, mark_version
from lockstep.features.delivery.undone import find_newest_batch, forget_undone, move_token
from lockstep.features.history.rewind_commit import make_lineage
from lockstep.model.decoding import decode_json
from lockstep.table.commit import Base
from lockstep.table.follower_positions import find_generation
from lockstep.table.head import Head, Lineage, Retention, Rewind

PARTITIONS = 3
HISTORIES = 500
EVENTS = 40
DEAD_EVERY = 20
"""One row in this many cannot be delivered."""
DELIVERY = Delivery(name="moves", target=KafkaTopic(topic="moves"))


class Row(NamedTuple):
    """A row of the table."""

    generation: int
    batch: int
    identity: RowIdentity


class History:
    """A table and a delivery of its rows, which may stop after any row."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)  # noqa: S311  # no secret
        self.head = Head(stream="s", cluster_id="c", table_id="t", epoch=1)
        self.heads = {0: self.head}
        self.floor = 0
        self.rows = dict[int, list[Row]]()
        self.ends = {0: [0] * PARTITIONS}
        self.token: DeliveryToken | None = None
        self.target = list[Row]()

    def write(self) -> None:
        """Commit a batch with rows of some partitions."""
        batch = self.head.batch + 1
        ends = list(self.ends[self.head.batch])
        written = list[Row]()
        for partition in range(PARTITIONS):
            for _ in range(self.choose.randint(0, 3)):
                identity = RowIdentity("id", partition, ends[partition], 0)
                written.append(Row(self.head.generation, batch, identity))
                ends[partition] += 1
        self.rows[batch] = written
        self.ends[batch] = ends
        self.commit(replace(self.head, batch=batch))

    def rewind(self) -> None:
        """Rewind to a batch that counts or was undone."""
        target = self.heads[self.choose.choice([each for each in self.heads if each >= self.floor])]
        if target.batch == self.head.batch:
            return
        batch = self.head.batch + 1
        rewind = Rewind(batch, batch, target.batch, self.head.batch, "")
        self.ends[batch] = self.ends[target.batch]
        self.rows[batch] = []
        lineage = make_lineage(target)
        rewinds = (*self.head.rewinds, rewind)
        self.commit(
            replace(self.head, generation=self.head.generation + 1, lineage=lineage, batch=batch, rewinds=rewinds)
        )

    def raise_floor(self) -> None:
        """Raise the floor: a rewind can no longer return to undone batches."""
        self.floor = self.head.batch
        self.commit(replace(self.head, rewinds=()))

    def drop(self) -> None:
        """Drop the rows of the oldest batches; a rewind can no longer return to before them."""
        dropped = self.choose.choice([self.dropped, *self.list_batches(self.dropped, self.head.batch)])
        self.floor = max(self.floor, dropped)
        self.commit(replace(self.head, retention=Retention("2026-01-01T00", dropped, 1.0, "old")))

    @property
    def dropped(self) -> int:
        """Return the last batch whose rows retention has dropped."""
        return 0 if self.head.retention is None else self.head.retention.batch

    def commit(self, head: Head) -> None:
        self.head = head
        self.heads[head.batch] = head

    def list_batches(self, after: int, until: int) -> list[int]:
        """List the batches that count."""
        valid = self.head.valid_batches
        return [each for each in range(after + 1, until + 1) if self.counts(each, valid)]

    def counts(self, batch: int, valid: dict[int, int]) -> bool:
        return batch <= valid.get(self.heads[batch].generation, -1)

    def deliver(self, rows: int) -> None:
        """Deliver a number of rows as a claim does: a step of some batches, ordered by identity."""
        read = VersionRead(Base(0, self.head), "")
        token = make_first_token(DELIVERY, "s", read) if self.token is None else self.token
        while (halt := find_halt(token, self.head, "")) is not None:
            token = accept_halt(token, self.head, halt.reason)
            assert halt.batch == (token.step_batch if halt.reason is HaltReason.UNDONE else token.batch)
        token = mark_version(token, read, "")
        while rows > 0 and (token.last is not None or token.batch < self.head.batch):
            if token.last is None:
                last = self.choose.choice(self.list_batches(token.batch, self.head.batch)[:4])
                token = replace(token, step_batch=last, step_generation=find_generation(self.head, last))
            token = self.deliver_step(token, rows)
            rows -= 5
            token = mark_version(token, read, "")
        self.token = token
        assert find_halt(token, self.head, "") is None

    def deliver_step(self, token: DeliveryToken, rows: int) -> DeliveryToken:
        step = list[Row]()
        for batch in self.list_batches(token.batch, token.step_batch):
            step += self.rows[batch]
        step.sort(key=lambda row: row.identity)
        left = [row for row in step if token.last is None or row.identity > token.last]
        for row in left[:rows]:
            if (row.batch + row.identity.emit_offset) % DEAD_EVERY == 1:
                token = replace(token, dead=(*token.dead, DeadRow(row.identity, row.generation, row.batch)))
            else:
                self.target.append(row)
        if rows < len(left):
            return replace(token, last=left[rows - 1].identity)
        return move_token(token, token.step_batch, token.step_generation)

    def retract(self) -> None:
        """Delete the undone rows of the target."""
        halt = None if self.token is None else find_halt(self.token, self.head, "")
        if self.token is None or halt is None or halt.reason is not HaltReason.UNDONE:
            return
        self.target = self.list_counting()
        accepted = accept_halt(self.token, self.head, HaltReason.UNDONE)
        self.token = mark_version(forget_undone(accepted, self.head), VersionRead(Base(0, self.head), ""), "")

    def list_counting(self) -> list[Row]:
        valid = self.head.valid_batches
        return [row for row in self.target if self.counts(row.batch, valid)]

    def step(self) -> None:
        """Apply a random event."""
        event = self.choose.choice("wwwwwrrrdddddfxo")
        if event == "w":
            self.write()
        elif event == "r":
            self.rewind()
        elif event == "d":
            self.deliver(self.choose.choice([1, 2, 3, 7, 1_000]))
        elif event == "x":
            self.retract()
        elif event == "o":
            self.drop()
        elif self.choose.random() < 0.2:
            self.raise_floor()

    def check(self) -> None:
        """Check that each valid row that was not dropped is in the target once, in order, or a dead letter.

        No other row may be there twice.
        """
        self.deliver(100_000)
        assert self.token is not None
        dead = [Row(each.generation, each.batch, each.row) for each in self.token.dead]
        assert max(Counter([*self.target, *dead]).values(), default=0) <= 1
        expected = list[Row]()
        for batch in self.list_batches(self.dropped, self.head.batch):
            expected += self.rows[batch]
        counting = self.list_counting()
        left_out = [row for row in dead if self.counts(row.batch, self.head.valid_batches)]
        assert sorted(row for row in [*counting, *left_out] if row.batch > self.dropped) == sorted(expected)
        for partition in range(PARTITIONS):
            identities = [row.identity for row in counting if row.identity.partition == partition]
            assert identities == sorted(identities)


def test_in_random_histories_no_row_is_delivered_twice() -> None:
    returned = 0
    for seed in range(HISTORIES):
        history = History(seed)
        for _ in range(EVENTS):
            history.step()
        history.check()
        returned += len(history.target) - len(history.list_counting())
    assert returned > HISTORIES  # undone rows were in most targets


def test_batches_that_count_again_are_not_delivered_again() -> None:
    """Batches 1 to 10 are delivered, 6 to 10 undone and accepted; after generation 2, batch 10 counts again."""
    first = Head(stream="s", cluster_id="c", table_id="t", batch=10, epoch=1)
    token = move_token(make_first_token(DELIVERY, "s", VersionRead(Base(0, first), "")), 10, 1)
    second = replace(first, generation=2, lineage=(Lineage(1, 5),), batch=20, rewinds=(Rewind(11, 11, 5, 10, ""),))
    token = mark_version(accept_halt(token, second, HaltReason.UNDONE), VersionRead(Base(0, second), ""), "")
    assert (token.batch, token.undone) == (5, {1: 10})
    token = mark_version(move_token(token, 20, 2), VersionRead(Base(0, second), ""), "")
    third = replace(first, generation=3, lineage=(Lineage(1, 10),), batch=30, rewinds=second.rewinds)
    halt = find_halt(token, third, "")
    assert halt is not None
    assert (halt.reason, halt.batch) == (HaltReason.UNDONE, 10)
    assert "batches 6 to 20" in halt.evidence
    accepted = accept_halt(token, third, HaltReason.UNDONE)
    assert (accepted.batch, accepted.undone) == (10, {2: 20})


def test_a_token_of_an_earlier_release_has_no_undone_rows() -> None:
    head = Head(stream="s", cluster_id="c", table_id="t", batch=10, epoch=1)
    token = make_first_token(DELIVERY, "s", VersionRead(Base(0, head), ""))
    earlier = msgspec.json.decode(msgspec.json.encode(token))
    del earlier["undone"], earlier["undone_steps"]
    decoded = decode_json(msgspec.json.encode(earlier), DeliveryToken)
    assert (decoded.undone, decoded.undone_steps) == ({}, ())


@pytest.mark.parametrize("keeps", [True, False])
def test_undone_rows_are_forgotten_if_no_rewind_can_return_to_them(keeps: bool) -> None:  # noqa: FBT001  # a parameter
    head = Head(stream="s", cluster_id="c", table_id="t", generation=2, lineage=(Lineage(1, 5),), batch=20, epoch=1)
    head = replace(head, rewinds=(Rewind(11, 11, 5, 10, ""),) if keeps else ())
    first = make_first_token(DELIVERY, "s", VersionRead(Base(0, head), ""))
    steps = (UndoneStep({1: 12}, RowIdentity("id", 0, 5, 0)),)
    token = replace(move_token(first, 15, 2), undone={1: 10}, undone_steps=steps)
    marked = mark_version(token, VersionRead(Base(0, head), ""), "")
    assert (marked.undone, marked.undone_steps) == (({1: 10}, steps) if keeps else ({}, ()))


def test_after_the_undone_rows_were_deleted_those_of_batches_that_count_are_known() -> None:
    head = Head(stream="s", cluster_id="c", table_id="t", generation=2, lineage=(Lineage(1, 5),), batch=20, epoch=1)
    first = make_first_token(DELIVERY, "s", VersionRead(Base(0, head), ""))
    last = RowIdentity("id", 0, 5, 0)
    token = replace(move_token(first, 3, 1), undone={1: 10}, undone_steps=(UndoneStep({1: 12}, last),))
    dead = (DeadRow(last, 1, 5), DeadRow(last, 1, 6), DeadRow(last, 2, 20), DeadRow(last, 3, 30))
    forgotten = forget_undone(replace(token, dead=dead), head)
    assert (forgotten.undone, forgotten.undone_steps) == ({}, (UndoneStep({1: 5}, last),))
    assert forgotten.dead == (dead[0], dead[2])


def test_the_newest_batch_with_rows_in_the_target_may_be_undone() -> None:
    head = Head(stream="s", cluster_id="c", table_id="t", batch=20, epoch=1)
    first = move_token(make_first_token(DELIVERY, "s", VersionRead(Base(0, head), "")), 3, 1)
    last = RowIdentity("id", 0, 5, 0)
    assert find_newest_batch(first) == 3
    assert find_newest_batch(replace(first, step_batch=4, last=last)) == 4
    assert find_newest_batch(replace(first, undone={2: 10})) == 10
    assert find_newest_batch(replace(first, undone={2: 10}, undone_steps=(UndoneStep({1: 2, 2: 12}, last),))) == 12
