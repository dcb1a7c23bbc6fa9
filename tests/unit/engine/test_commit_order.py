"""An order to commit waiting messages: due until the messages of its moment are read, and only for its writer."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.control.handover import CommitRequest, request_commit
from lockstep.engine.driver.commit_order import CommitOrder
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.position import Position, TopicIdPartition

EVENTS = st.sampled_from(["send", "read", "order", "hide", "show", "leave", "cut"])
STEPS = st.lists(st.tuples(EVENTS, st.integers(0, 1), st.integers(1, 3)), max_size=20)
"""An event, the number of its partition, and a number of messages."""


class Model:
    """A plain model: the end and the position of each partition, and its end at the moment of the order."""

    def __init__(self) -> None:
        self.end = [0, 0]
        self.position: list[int | None] = [0, 0]
        self.hidden = [False, False]
        self.ordered = [0, 0]

    def apply(self, step: str, partition: int, count: int) -> None:
        at = self.position[partition]
        if step == "send":
            self.end[partition] += count
        elif step == "read" and at is not None:
            self.position[partition] = min(self.end[partition], at + count)
        elif step == "cut" and not self.hidden[partition]:
            self.end[partition] = max(0, self.end[partition] - count)
            self.position[partition] = None if at is None else min(self.end[partition], at)
            self.ordered[partition] = min(self.end[partition], self.ordered[partition])
        elif step == "leave":
            self.position[partition] = None
        elif step in {"hide", "show"}:
            self.hidden[partition] = step == "hide"
        elif step == "order":
            self.ordered = [0 if hidden else end for end, hidden in zip(self.end, self.hidden, strict=True)]

    def is_due(self) -> bool:
        waits = [at is not None and at < until for at, until in zip(self.position, self.ordered, strict=True)]
        return any(due and not hidden for due, hidden in zip(waits, self.hidden, strict=True))


@given(STEPS)
@example([("send", 0, 1), ("order", 0, 1), ("hide", 0, 1)])
@example([("send", 0, 2), ("order", 0, 1), ("cut", 0, 1), ("read", 0, 1), ("send", 0, 1)])
def test_an_order_is_due_until_the_messages_of_its_moment_are_read(steps: list[tuple[str, int, int]]) -> None:
    model = Model()
    with TemporaryDirectory() as folder:
        order = CommitOrder(Path(folder), 3)
        of_others = CommitOrder(Path(folder), 4)
        for step, partition, count in steps:
            model.apply(step, partition, count)
            if step == "order":
                assert request_commit(Path(folder), 3, CommitRequest("ann"))
                assert not request_commit(Path(folder), 3, CommitRequest("bob"))
            ends = {
                TopicIdPartition("t", number): PartitionOffsets(0, end, end + 1)
                for number, end in enumerate(model.end)
                if not model.hidden[number]
            }
            positions = {
                TopicIdPartition("t", number): Position(topic="t", topic_id="t", partition=number, next_offset=at)
                for number, at in enumerate(model.position)
                if at is not None
            }
            of_others.poll()
            assert not of_others.is_due(positions, ends)
            order.poll()
            assert order.is_due(positions, ends) is model.is_due()
