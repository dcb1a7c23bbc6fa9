"""Requests to a writer, stored in its heartbeat folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.control.handover import (
    CommitRequest,
    RetireRequest,
    StopRequest,
    accept_requests,
    is_asked_to_hand_over,
    request_commit,
    request_retirement,
    request_stop,
    reserve_start,
)
from lockstep.control.heartbeat import Heartbeat, WriterState, find_writer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_handover_goes_on_where_its_acknowledgement_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "liveness-1.json").mkdir()
    (tmp_path / "handover-1.json").touch()
    assert is_asked_to_hand_over(Heartbeat(tmp_path, 1))


def test_a_writer_that_ends_leaves_no_request_behind(tmp_path: Path) -> None:
    with accept_requests(tmp_path, 1), Heartbeat(tmp_path, 1) as writer:
        (tmp_path / "handover-1.json").touch()
        request_stop(tmp_path, 1, StopRequest("enough", "ann"))
        request_commit(tmp_path, 1, CommitRequest("ann"))
        request_retirement(tmp_path, 1, RetireRequest(("gone",), "ann", "why"))
        assert is_asked_to_hand_over(writer)
        assert find_writer(tmp_path, 1) is WriterState.DRAINING
    assert find_writer(tmp_path, 1) is WriterState.ENDED
    assert [path.name for path in tmp_path.iterdir()] == ["liveness-1.json"]


def test_a_start_is_reserved_once_and_only_starts_of_its_epoch_count(tmp_path: Path) -> None:
    assert [reserve_start(tmp_path, 2, attempt) for attempt in (0, 0, 1, 5)] == [0, None, 1, 5]
    assert reserve_start(tmp_path, 2, 0) == 6  # a cursor that was reset
    assert reserve_start(tmp_path, 1, 0) == 0  # decided before another writer claimed
    assert reserve_start(tmp_path, 3, 0) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["start0-3.json"]
