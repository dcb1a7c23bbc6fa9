"""A deletion is an event if and only if every message was read; otherwise the possible loss is named."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from lockstep.kafka.admin import PartitionOffsets
from lockstep.kafka.topic_end import NEVER_OBSERVED, EndSnapshot, GoneTopic, judge_topic_end
from lockstep.model.position import Ending, Position, TopicIdPartition
from tests.support.cluster_views import topic

AGE_MAX = 60.0
OFFSETS = st.integers(0, 4)


class Part(NamedTuple):
    """A partition: its position, and its end in each read, newest first; None for a read without an answer."""

    position: int | None
    ends: tuple[int | None, ...]
    epoch: int | None
    leader_epochs: tuple[int | None, ...]
    is_verified: bool
    catching_up: bool


class Case(NamedTuple):
    parts: tuple[Part, ...]
    ages: tuple[float, ...]
    certain: tuple[bool, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    looks = draw(st.integers(0, 3))
    ages = tuple(sorted(draw(st.lists(st.floats(0, 80), min_size=looks, max_size=looks))))
    ends = st.lists(st.none() | OFFSETS, min_size=looks, max_size=looks).map(tuple)
    epochs = st.lists(st.none() | st.integers(0, 1), min_size=looks, max_size=looks).map(tuple)
    part = st.builds(
        Part, st.none() | OFFSETS, ends, st.none() | st.integers(0, 1), epochs, st.booleans(), st.booleans()
    )
    parts = draw(st.lists(part, min_size=1, max_size=2))
    if draw(st.booleans()):  # most topics stand still: otherwise nearly every case is a fault
        parts = [each._replace(ends=(each.position,) * looks, epoch=None) for each in parts]
    certain = tuple(draw(st.lists(st.sampled_from((True, True, False)), min_size=looks, max_size=looks)))
    return Case(tuple(parts), ages, certain)


def make_gone(case: Case) -> GoneTopic:
    looks = tuple(
        EndSnapshot(
            ends={
                n: PartitionOffsets(0, end, end, part.leader_epochs[at])
                for n, part in enumerate(case.parts)
                if (end := part.ends[at]) is not None
            },
            age_seconds=age,
            is_certain=case.certain[at],
        )
        for at, age in enumerate(case.ages)
    )
    return GoneTopic(topic("a", "id-a", len(case.parts)), looks, noticed_us=7)


def make_positions(case: Case) -> dict[int, Position]:
    return {
        n: Position(
            topic="a",
            topic_id="id-a",
            partition=n,
            next_offset=part.position,
            leader_epoch=part.epoch,
            catching_up=part.catching_up,
        )
        for n, part in enumerate(case.parts)
        if part.position is not None
    }


def is_unread(case: Case, at: int) -> bool:
    """Return whether a read, whole or not, shows unread messages."""
    pairs = [(part.position, part.ends[at]) for part in case.parts]
    return any(position is None or (end or 0) > position for position, end in pairs)


def is_read(part: Part, at: int) -> bool:
    end = part.ends[at]
    position = part.position
    shown = part.leader_epochs[at]
    if end is None or position is None:
        return False
    same_log = part.epoch is None or shown is None or shown == part.epoch or (part.is_verified and shown == 1)
    return same_log and (end == position or (part.catching_up and end < position))


@given(case=cases())
def test_only_a_recent_read_of_the_very_end_makes_a_deletion_an_event(case: Case) -> None:
    whole = [at for at in range(len(case.ages)) if all(part.ends[at] is not None for part in case.parts)]
    proofs = [at for at in whole if case.certain[at] and all(is_read(part, at) for part in case.parts)]
    expected = (
        bool(proofs)
        and case.ages[proofs[0]] <= AGE_MAX
        and not any(is_unread(case, at) for at in range(len(case.ages)))
    )
    verified = {TopicIdPartition("id-a", n): 1 for n, part in enumerate(case.parts) if part.is_verified}
    end = judge_topic_end(make_gone(case), make_positions(case), verified, AGE_MAX)
    event(f"event: {expected}")
    assert end.is_event is expected, end.loss
    if expected:
        ends = {n: part.ends[proofs[0]] for n, part in enumerate(case.parts)}
        assert {n: end.make_ending("deleted", n) for n in ends} == {
            n: Ending("deleted", offset, case.ages[proofs[0]]) for n, offset in ends.items()
        }


def judged(position: int, *looks: tuple[int | None, float], certain: bool = True) -> str:
    """Return the loss of a topic of one partition; reads are ends and their ages, newest first."""
    ends = tuple(end for end, _ in looks)
    epochs = (None,) * len(looks)
    part = Part(position, ends, epoch=None, leader_epochs=epochs, is_verified=False, catching_up=False)
    case = Case((part,), tuple(age for _, age in looks), (certain,) * len(looks))
    return judge_topic_end(make_gone(case), make_positions(case), {}, AGE_MAX).loss


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (judged(5, (5, 3.0)), ""),
        (judged(5, (5, 60.0)), ""),
        (judged(0, (0, 3.0)), ""),
        (judged(5, (7, 3.0), (5, 8.0)), "offsets 5 to 6 of partition 0 were not read"),
        (judged(5, (5, 75.0)), "its end was last observed 75 s before it was missed, more than 60 s"),
        (judged(5, (3, 3.0)), "its end was not observed after its last message was read"),
        (judged(5, (5, 3.0), certain=False), "its end was not observed after its last message was read"),
        (judged(5, (None, 3.0), (5, 8.0)), ""),
        (judged(5, (None, 3.0)), NEVER_OBSERVED),
        (judged(5), NEVER_OBSERVED),
    ],
)
def test_a_fault_names_what_may_be_lost(loss: str, text: str) -> None:
    assert loss == text


def test_messages_that_an_uncertain_read_shows_are_unread_messages() -> None:
    """They may be of this topic or of its successor, so it is uncertain that all messages were read."""
    assert re.match("offsets 5 to 6", judged(5, (7, 3.0), certain=False))


def test_a_topic_that_this_run_has_never_seen_is_a_fault() -> None:
    end = judge_topic_end(None, {}, {}, AGE_MAX)
    assert (end.loss, end.ends, end.noticed_us) == (NEVER_OBSERVED, {}, None)


@pytest.mark.parametrize(
    ("shown", "verified", "is_event"),
    [(3, {}, True), (4, {}, False), (4, {TopicIdPartition("id-a", 0): 4}, True), (None, {}, True)],
)
def test_a_log_under_another_leader_may_hold_other_records_until_that_is_ruled_out(
    shown: int | None,
    verified: dict[TopicIdPartition, int],
    is_event: bool,  # noqa: FBT001  # a case
) -> None:
    """It may have been truncated and have grown again to the same end."""
    part = Part(5, (5,), epoch=3, leader_epochs=(shown,), is_verified=False, catching_up=False)
    case = Case((part,), (1.0,), (True,))
    assert judge_topic_end(make_gone(case), make_positions(case), verified, AGE_MAX).is_event is is_event


def test_a_log_whose_truncation_was_accepted_is_read_although_it_ends_before_the_position() -> None:
    part = Part(5, (3,), epoch=None, leader_epochs=(None,), is_verified=False, catching_up=True)
    case = Case((part,), (1.0,), (True,))
    assert judge_topic_end(make_gone(case), make_positions(case), {}, AGE_MAX).is_event
