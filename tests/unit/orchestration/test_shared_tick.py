"""One tick for all streams: a poll that fails, takes long or starts a run concerns its stream alone."""

from __future__ import annotations

import dataclasses
import errno
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from dagster import (
    AddDynamicPartitionsRequest,
    AssetMaterialization,
    DagsterInstance,
    RunRequest,
    SensorResult,
    SkipReason,
    build_sensor_context,
)
from deltalake.exceptions import DeltaError

from assets.order_books import order_books
from lockstep.errors import TableError
from lockstep.orchestration.sensor_cursor import SensorCursor
from lockstep.orchestration.shared_tick import SharedCursor, poll_streams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster import SensorEvaluationContext

    from lockstep.declare.stream import AnyStream

STREAMS = [dataclasses.replace(order_books, name=name) for name in ("a", "b", "c")]


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


def tick(instance: DagsterInstance, cursor: str | None = None) -> SensorEvaluationContext:
    return build_sensor_context(instance=instance, cursor=cursor)


class Looks(SensorCursor, frozen=True):
    """A cursor that counts polls."""

    number: int = 0


def make_cursor(**looks: int) -> SharedCursor:
    """Return the cursor after so many polls of each stream."""
    return SharedCursor.of({name: Looks(number=number).encode() for name, number in looks.items()})


def counts(_: AnyStream, cursor: Looks) -> SensorResult:
    """Count the poll in its cursor."""
    number = cursor.number + 1
    return SensorResult(cursor=Looks(number=number).encode(), skip_reason=SkipReason(f"look {number}"))


def test_each_stream_has_its_cursor_and_its_reason(instance: DagsterInstance) -> None:
    first = poll_streams(tick(instance), STREAMS, Looks, counts)
    assert str(first.skip_reason and first.skip_reason.skip_message) == "a: look 1; b: look 1; c: look 1"
    second = poll_streams(tick(instance, first.cursor), STREAMS[1:], Looks, counts)
    assert SharedCursor.read(second.cursor) == (make_cursor(b=2, c=2), "")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TableError("torn", next_step="lockstep repair STREAM"), "b: torn\n  next: lockstep repair b"),
        (OSError(errno.ENOSPC, "No space left on device", "/tables"), "No space left on device: /tables\n  next: free"),
        (DeltaError("found gap"), "found gap\n  next: lockstep repair b checks the table"),
        (ZeroDivisionError("a defect"), "b: FAILED, see the log of this tick: ZeroDivisionError: a defect"),
    ],
)
def test_a_look_that_fails_keeps_its_cursor_and_the_others_go_on(
    instance: DagsterInstance, error: Exception, expected: str
) -> None:
    def look(stream: AnyStream, cursor: Looks) -> SensorResult:
        if stream.name == "b":
            raise error
        return counts(stream, cursor)

    before = make_cursor(a=5, b=5)
    result = poll_streams(tick(instance, before.encode()), STREAMS, Looks, look)
    assert SharedCursor.read(result.cursor) == (make_cursor(a=6, b=5, c=1), "")
    reason = str(result.skip_reason and result.skip_reason.skip_message)
    assert expected in reason


def test_what_the_looks_request_is_requested_together(instance: DagsterInstance) -> None:
    def look(stream: AnyStream, _: Looks) -> SensorResult:
        if stream.name == "c":
            return SensorResult(skip_reason=SkipReason("nothing"))
        return SensorResult(
            run_requests=[RunRequest(run_key=stream.name, job_name=f"{stream.name}_stream")],
            asset_events=[AssetMaterialization(stream.name)],
            dynamic_partitions_requests=[AddDynamicPartitionsRequest(f"{stream.name}_topics", ["t"])],
        )

    result = poll_streams(tick(instance), STREAMS, Looks, look, starts_max=3)
    assert [request.job_name for request in result.run_requests or ()] == ["a_stream", "b_stream"]
    assert [event.asset_key.to_user_string() for event in result.asset_events] == ["a", "b"]
    assert [each.partitions_def_name for each in result.dynamic_partitions_requests or ()] == ["a_topics", "b_topics"]
    assert result.skip_reason is None


def test_streams_for_which_no_time_is_left_come_first_in_the_next_tick(instance: DagsterInstance) -> None:
    looked: list[str] = []

    def slow(stream: AnyStream, cursor: Looks) -> SensorResult:
        looked.append(stream.name)
        time.sleep(0.02)
        return counts(stream, cursor)

    cursor: str | None = None
    for _ in range(3):
        cursor = poll_streams(tick(instance, cursor), STREAMS, Looks, slow, seconds_max=0.01).cursor
    assert looked == ["a", "b", "c"]
    assert SharedCursor.read(cursor) == (msgspec.structs.replace(make_cursor(a=1, b=1, c=1), first="a"), "")


def test_after_so_many_starts_the_other_streams_wait_for_the_next_tick(instance: DagsterInstance) -> None:
    def start(stream: AnyStream, _: Looks) -> SensorResult:
        return SensorResult(run_requests=[RunRequest(run_key=stream.name, job_name="job")])

    first = poll_streams(tick(instance), STREAMS, Looks, start, starts_max=2)
    second = poll_streams(tick(instance, first.cursor), STREAMS, Looks, start, starts_max=2)
    asked = [[request.run_key for request in each.run_requests or ()] for each in (first, second)]
    assert asked == [["a", "b"], ["a", "c"]]


def test_a_stream_that_is_gone_is_not_waited_for(instance: DagsterInstance) -> None:
    cursor = SharedCursor(first="gone").encode()
    assert SharedCursor.read(poll_streams(tick(instance, cursor), STREAMS, Looks, counts).cursor)[0].first == ""


@pytest.mark.parametrize(("text", "why"), [("{", "cannot be read"), ('{"version": 9}', "is of version 9")])
def test_a_cursor_that_cannot_be_read_is_reset_with_a_warning(instance: DagsterInstance, text: str, why: str) -> None:
    assert why in SharedCursor.read(text)[1]
    result = poll_streams(tick(instance, text), STREAMS, Looks, counts)
    assert SharedCursor.read(result.cursor) == (make_cursor(a=1, b=1, c=1), "")
