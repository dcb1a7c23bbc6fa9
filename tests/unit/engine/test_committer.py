"""A batch is committed only after all that must follow the one before, and waits for nothing else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lockstep import Kind
from lockstep.engine.driver import committer
from lockstep.kafka.consumer_group import ConsumerGroup, Place
from lockstep.model.position import Position
from lockstep.settings import KafkaSettings
from tests.support.kept_stream import keeping, message
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def test_batches_go_on_while_a_log_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, may_end = list[int](), threading.Event()

    def write_slowly(_: Path, version: int) -> bool:
        assert may_end.wait(60)
        checked.append(version)
        return False

    monkeypatch.setattr(committer, "write_checkpoint_if_due", write_slowly)
    first = {"kept.a": [("a", message(Kind.SNAPSHOT, 1, x=1))]}
    more = ({"kept.a": [("a", message(Kind.UPDATE, number, x=1))]} for number in (2, 3, 4))
    stream = Offline(keeping(), tmp_path)
    with ThreadPoolExecutor(1) as background_executor:
        assert len(stream.run(first, *more, background_executor=background_executor)) == 4
        assert not checked
        may_end.set()
    assert len(checked) == 8  # of the table and of the ledger, for each batch


def test_positions_that_wait_for_an_absent_coordinator_are_published_once_and_the_newest_of_them() -> None:
    """A publication then takes longer than the interval: the end of a run waited for all of the last hours."""
    sent, may_end = list[int](), threading.Event()

    class Waiting(ConsumerGroup):
        def publish(self, offsets: Mapping[Place, int]) -> None:
            assert may_end.wait(60)
            sent.extend(offsets.values())

    with ThreadPoolExecutor(1) as background_executor:
        publisher = committer.Publisher(Waiting(KafkaSettings(), "kept"), background_executor)
        for offset in range(1, 6):
            publisher.publish([Position(topic="a", topic_id="id-a", partition=0, next_offset=offset)])
        may_end.set()
    assert sent in ([5], [1, 5])  # the first one may have begun before the second one came
