"""A batch is committed only after the required steps of the previous batch, and waits for nothing else."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from lockstep import Kind
from lockstep.engine.driver import committer
from lockstep.errors import TableError
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import Position, TopicNamePartition
from lockstep.settings import KafkaSettings
from lockstep.table import ledger
from lockstep.table.commit import OutputLog
from tests.support import offline_stream
from tests.support.kept_stream import POISON, keeping, message
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lockstep.engine.protocol import BatchIdentity, TaskResult
    from lockstep.table.commit import BatchCommit, Committed, Proposal


def test_batches_go_on_while_a_log_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[int]()
    may_end = threading.Event()

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


class Late(Future[Any]):
    """Work that is done only when its result is awaited."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work

    @override
    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result(self._work())
        return super().result(timeout)


class LateExecutor(ThreadPoolExecutor):
    """Threads that never start their work by themselves, as on a busy machine."""

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Late(partial(fn, *args, **kwargs))


def test_a_batch_waits_until_the_side_tables_hold_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they lack more than the last batch, and the next start can add only the last batch."""
    monkeypatch.setattr(offline_stream, "ThreadPoolExecutor", LateExecutor)
    stream = Offline(keeping(), tmp_path)
    held = list[list[int]]()
    commit = OutputLog.commit

    def commit_and_look(output: OutputLog, proposal: Proposal) -> Committed:
        held.append(sorted({row.batch for row in ledger.read_ledger(stream.folders.ledger)}))
        return commit(output, proposal)

    stream.run({"kept.a": [("a", message(Kind.SNAPSHOT, 1, x=1))]})
    monkeypatch.setattr(OutputLog, "commit", commit_and_look)
    stream.run(*({"kept.a": [("a", message(Kind.UPDATE, number, x=1))]} for number in (2, 3, 4)))
    assert held == [[1], [1], [1, 2], [1, 2, 3]]  # at the claim, and at each batch
    assert [row.batch for row in ledger.read_ledger(stream.folders.ledger)] == [1, 2, 3, 4]


@pytest.mark.parametrize("files", ["state/*.state", "quarantine/*.parquet"])
def test_a_batch_of_which_a_file_is_cut_before_its_commit_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    stream = Offline(keeping(), tmp_path)

    def cut_and_make(batch: BatchIdentity, results: list[TaskResult]) -> BatchCommit:
        (path,) = stream.folders.table.parent.rglob(files)
        path.write_bytes(path.read_bytes()[:-1])
        return committer.make_batch_commit(batch, results)

    monkeypatch.setattr(offline_stream, "make_batch_commit", cut_and_make)
    sent = [("a", message(Kind.SNAPSHOT, 1, x=1)), ("a", message(Kind.UPDATE, 2, x=POISON))]
    with pytest.raises(TableError, match=r"fewer than .*; nothing was committed"):
        stream.run({"kept.a": sent})


def test_positions_are_published_with_the_first_batch_then_at_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run that is killed a moment later has its group, so a mistyped table root is not read as a new stream."""
    sent = list[int]()

    class Kept(ConsumerGroup):
        def publish(self, offsets: Mapping[TopicNamePartition, int]) -> None:
            sent.extend(offsets.values())

    def note(publisher: committer.Publisher, offset: int) -> None:
        publisher.note([Position(topic="a", topic_id="id-a", partition=0, next_offset=offset)])
        background_executor.submit(int).result()

    with ThreadPoolExecutor(1) as background_executor:
        publisher = committer.Publisher(Kept(KafkaSettings(), "kept"), background_executor)
        note(publisher, 1)
        note(publisher, 2)
        monkeypatch.setattr(committer, "PUBLISH_SECONDS", 0.0)
        note(publisher, 3)
    assert sent == [1, 3]


def test_positions_that_wait_for_an_absent_coordinator_are_published_once_and_the_newest_of_them() -> None:
    """A publication then takes longer than the interval: the end of a run waited for all of the last hours."""
    sent = list[int]()
    may_end = threading.Event()

    class Waiting(ConsumerGroup):
        def publish(self, offsets: Mapping[TopicNamePartition, int]) -> None:
            assert may_end.wait(60)
            sent.extend(offsets.values())

    with ThreadPoolExecutor(1) as background_executor:
        publisher = committer.Publisher(Waiting(KafkaSettings(), "kept"), background_executor)
        for offset in range(1, 6):
            publisher.publish([Position(topic="a", topic_id="id-a", partition=0, next_offset=offset)])
        may_end.set()
    assert sent in ([5], [1, 5])  # the first publication may have started before the second
