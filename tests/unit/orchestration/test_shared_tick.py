"""One tick for all streams: a look that fails, takes long or starts a run concerns its stream alone."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

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

from assets.order_books import order_books
from lockstep.errors import TableError
from lockstep.orchestration.shared_tick import SharedCursor, look_at_streams, read_shared_cursor

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


def counts(_: AnyStream, cursor: str | None) -> SensorResult:
    """A look that counts itself in its cursor."""
    number = int(cursor or 0) + 1
    return SensorResult(cursor=str(number), skip_reason=SkipReason(f"look {number}"))


def test_each_stream_has_its_cursor_and_its_reason(instance: DagsterInstance) -> None:
    first = look_at_streams(tick(instance), STREAMS, counts)
    assert str(first.skip_reason and first.skip_reason.skip_message) == "a: look 1; b: look 1; c: look 1"
    second = look_at_streams(tick(instance, first.cursor), STREAMS[1:], counts)
    assert read_shared_cursor(second.cursor) == (SharedCursor.of({"b": "2", "c": "2"}), "")


@pytest.mark.parametrize("error", [TableError("torn", next_step="lockstep repair b"), ZeroDivisionError("a defect")])
def test_a_look_that_fails_keeps_its_cursor_and_the_others_go_on(instance: DagsterInstance, error: Exception) -> None:
    def look(stream: AnyStream, cursor: str | None) -> SensorResult:
        if stream.name == "b":
            raise error
        return counts(stream, cursor)

    before = SharedCursor.of({"a": "5", "b": "5"})
    result = look_at_streams(tick(instance, before.encode()), STREAMS, look)
    after, _ = read_shared_cursor(result.cursor)
    assert after.streams == {"a": "6", "b": "5", "c": "1"}
    reason = str(result.skip_reason and result.skip_reason.skip_message)
    assert str(error) in reason
    assert ("b: FAILED" in reason) == isinstance(error, ZeroDivisionError)


def test_what_the_looks_request_is_requested_together(instance: DagsterInstance) -> None:
    def look(stream: AnyStream, _: str | None) -> SensorResult | SkipReason:
        if stream.name == "c":
            return SkipReason("nothing")
        return SensorResult(
            run_requests=[RunRequest(run_key=stream.name, job_name=f"{stream.name}_stream")],
            asset_events=[AssetMaterialization(stream.name)],
            dynamic_partitions_requests=[AddDynamicPartitionsRequest(f"{stream.name}_topics", ["t"])],
        )

    result = look_at_streams(tick(instance), STREAMS, look, starts_max=3)
    assert [request.job_name for request in result.run_requests or ()] == ["a_stream", "b_stream"]
    assert [event.asset_key.to_user_string() for event in result.asset_events] == ["a", "b"]
    assert [each.partitions_def_name for each in result.dynamic_partitions_requests or ()] == ["a_topics", "b_topics"]
    assert result.skip_reason is None


def test_streams_for_which_no_time_is_left_come_first_in_the_next_tick(instance: DagsterInstance) -> None:
    looked: list[str] = []

    def slow(stream: AnyStream, cursor: str | None) -> SensorResult:
        looked.append(stream.name)
        time.sleep(0.02)
        return counts(stream, cursor)

    cursor: str | None = None
    for _ in range(3):
        cursor = look_at_streams(tick(instance, cursor), STREAMS, slow, seconds_max=0.01).cursor
    assert looked == ["a", "b", "c"]
    assert read_shared_cursor(cursor) == (SharedCursor.of({"a": "1", "b": "1", "c": "1"}, first="a"), "")


def test_after_so_many_starts_the_other_streams_wait_for_the_next_tick(instance: DagsterInstance) -> None:
    def start(stream: AnyStream, _: str | None) -> SensorResult:
        return SensorResult(run_requests=[RunRequest(run_key=stream.name, job_name="job")])

    first = look_at_streams(tick(instance), STREAMS, start, starts_max=2)
    second = look_at_streams(tick(instance, first.cursor), STREAMS, start, starts_max=2)
    asked = [[request.run_key for request in each.run_requests or ()] for each in (first, second)]
    assert asked == [["a", "b"], ["a", "c"]]


def test_a_stream_that_is_gone_is_not_waited_for(instance: DagsterInstance) -> None:
    cursor = SharedCursor(first="gone").encode()
    assert read_shared_cursor(look_at_streams(tick(instance, cursor), STREAMS, counts).cursor)[0].first == ""


@pytest.mark.parametrize(("text", "why"), [("{", "cannot be read"), ('{"version": 9}', "is of version 9")])
def test_a_cursor_that_cannot_be_read_is_reset_with_a_warning(instance: DagsterInstance, text: str, why: str) -> None:
    assert why in read_shared_cursor(text)[1]
    result = look_at_streams(tick(instance, text), STREAMS, counts)
    assert read_shared_cursor(result.cursor)[0].streams == {"a": "1", "b": "1", "c": "1"}
