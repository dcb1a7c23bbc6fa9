"""The losses in the head, after any history of batches, acceptances and rewinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as some

from lockstep.model.state_loss import LossTotal
from lockstep.table.losses import NONE_LOST, BatchLosses, LostStates, accept_losses, add_losses, rewind_losses

STEPS = some.lists(
    some.one_of(
        some.tuples(some.just("batch"), some.integers(0, 3), some.integers(0, 3)),
        some.tuples(some.just("accept"), some.just(0), some.just(0)),
        some.tuples(some.just("rewind"), some.integers(1, 5), some.just(0)),
    ),
    max_size=40,
)


class Batch(NamedTuple):
    """A batch that counts: the numbers of its open and accepted lost sessions, and the losses in the head after it."""

    number: int
    open: int
    accepted: int
    lost: LostStates


@dataclass
class History:
    """The batches of a stream that count, and the batches that an operator has seen at an acceptance."""

    lost: LostStates = NONE_LOST
    batches: list[Batch] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    newest: int = 0

    def do(self, what: str, first: int, second: int) -> None:
        if what == "accept":
            if self.lost.open:
                self.lost = accept_losses(self.lost, 1.0, "seen (ann)")
                self.seen |= {each.number for each in self.batches}
            return
        self.newest += 1
        if what == "rewind":
            del self.batches[max(1, len(self.batches) - first) :]
            target = self.batches[-1].lost if self.batches else NONE_LOST
            self.lost = rewind_losses(self.lost, target)
            self.batches.append(Batch(self.newest, 0, 0, self.lost))
            return
        losses = BatchLosses(LossTotal(first + second, 10 * (first + second)), LossTotal(first, 10 * first))
        self.lost = add_losses(self.lost, self.newest, losses)
        self.batches.append(Batch(self.newest, first, second, self.lost))


@given(steps=STEPS)
def test_the_head_counts_the_losses_of_the_batches_that_count(steps: list[tuple[str, int, int]]) -> None:
    history = History()
    for step in steps:
        history.do(*step)
        lost = history.lost
        batches = history.batches
        assert lost.total.sessions == sum(each.open + each.accepted for each in batches)
        unseen = sum(each.open for each in batches if each.number not in history.seen)
        assert unseen <= lost.open.sessions <= lost.total.sessions
        assert lost.open.messages == 10 * lost.open.sessions
        first = lost.first_batch
        assert lost.open.sessions == sum(each.open for each in batches if first and each.number >= first)
        assert bool(lost.open) is (lost.last_batch in {each.number for each in batches if each.open})


@given(steps=STEPS)
def test_without_a_rewind_exactly_the_unseen_losses_are_open(steps: list[tuple[str, int, int]]) -> None:
    history = History()
    for step in steps:
        if step[0] != "rewind":
            history.do(*step)
            unseen = sum(each.open for each in history.batches if each.number not in history.seen)
            assert history.lost.open.sessions == unseen
