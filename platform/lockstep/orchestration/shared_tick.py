"""One tick of a sensor for all streams: each has a separate cursor, and none delays the others.

A tick costs Dagster some 0.05 CPU seconds, besides its work. With separate sensors for each of 40 streams, a
supervisor polled every 13 seconds instead of every five, and after 52 at times (measured: decision 44).
"""

from __future__ import annotations

import os
import time
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec
from dagster import SensorResult, SkipReason

from lockstep.foreign_errors import explain_error
from lockstep.orchestration.sensor_cursor import SensorCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dagster import SensorEvaluationContext

    from lockstep.declare.stream import AnyStream

C = TypeVar("C", bound=SensorCursor)
TICK_SECONDS_MAX = 20.0
"""No poll starts later in a tick: Dagster abandons a tick of 60 seconds, and with it all cursors."""
STARTS_MAX = max(2, os.cpu_count() or 2)
"""Streams that start at once: a start keeps a core busy for some 20 seconds, and after a reboot all of them start."""
KAFKA_SECONDS_MAX = 5.0
"""Of a request to Kafka: a poll has several, and all streams wait for a request without an answer."""


class SharedCursor(SensorCursor, frozen=True):
    """State of a sensor between ticks.

    Attributes:
        cursors: The cursor of each stream that has been polled, as JSON, by its name.
        first: The stream with which the next tick starts; empty for the first stream.
    """

    cursors: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    first: str = ""

    @classmethod
    def of(cls, streams: Mapping[str, str], first: str = "") -> SharedCursor:
        """The cursor of these streams."""
        return cls(cursors={name: msgspec.Raw(text.encode()) for name, text in streams.items()}, first=first)

    @property
    def streams(self) -> dict[str, str]:
        """The cursor of each stream, by its name."""
        return {name: bytes(raw).decode() for name, raw in self.cursors.items()}


def poll_streams(
    context: SensorEvaluationContext,
    streams: Sequence[AnyStream],
    kind: type[C],
    look: Callable[[AnyStream, C], SensorResult],
    *,
    seconds_max: float = TICK_SECONDS_MAX,
    starts_max: int = STARTS_MAX,
) -> SensorResult:
    """Poll each stream, and return all results as one.

    A poll that fails leaves its cursor unchanged, and the next tick repeats it. Streams for which no time or no start
    is left are the first of the next tick.

    Args:
        context: The tick.
        streams: All streams.
        kind: Type of the cursor of a stream.
        look: Polls one of them, with the cursor of its last poll.
        seconds_max: No poll starts after this time.
        starts_max: No poll starts after so many requests of runs.
    """
    cursor, warning = SharedCursor.read(context.cursor)
    if warning:
        context.log.warning(warning)
    # Dagster abandons a tick of 60 seconds, and with it all cursors.
    until = time.monotonic() + seconds_max
    first = ""
    starts = 0
    results = dict[str, SensorResult | SkipReason]()
    for stream in _order(streams, cursor.first):
        # Streams for which no time or no start is left are the first of the next tick.
        if first or starts >= starts_max or (results and time.monotonic() >= until):
            first = first or stream.name
            results[stream.name] = SkipReason("waits for the next tick")
            continue
        result = _look(context, stream, look, *kind.read(cursor.streams.get(stream.name)))
        results[stream.name] = result
        if isinstance(result, SensorResult):
            starts += len(result.run_requests or ())
    return _merge({stream.name: results[stream.name] for stream in streams}, cursor.streams, first)


def _order(streams: Sequence[AnyStream], first: str) -> Iterator[AnyStream]:
    """The streams from `first` on, and then those before it."""
    begin = next((place for place, stream in enumerate(streams) if stream.name == first), 0)
    yield from (*streams[begin:], *streams[:begin])


def _look(
    context: SensorEvaluationContext,
    stream: AnyStream,
    look: Callable[[AnyStream, C], SensorResult],
    cursor: C,
    warning: str,
) -> SensorResult | SkipReason:
    if warning:
        context.log.warning("%s: %s", stream.name, warning)
    try:
        return look(stream, cursor)
    except Exception as error:  # of one stream: it does not stop the others
        explained = explain_error(error, stream.name)
        if explained is not error:
            context.log.exception("the look at %s failed", stream.name)
        if explained is not None:  # the next look may succeed
            return SkipReason(str(explained))
        return SkipReason(f"FAILED, see the log of this tick: {type(error).__name__}: {error}")


def _merge(results: Mapping[str, SensorResult | SkipReason], before: Mapping[str, str], first: str) -> SensorResult:
    """One result; the reasons of all streams, unless a run is requested: Dagster shows one or the other."""
    done = {name: result for name, result in results.items() if isinstance(result, SensorResult)}
    cursors = {name: before[name] for name in results if name in before}
    cursors |= {name: result.cursor for name, result in done.items() if result.cursor is not None}
    requests = list(chain.from_iterable(result.run_requests or () for result in done.values()))
    events = list(chain.from_iterable(result.asset_events for result in done.values()))
    partitions = list(chain.from_iterable(result.dynamic_partitions_requests or () for result in done.values()))
    skip_reason = None
    if not requests:
        skip_reason = SkipReason("; ".join(_explain(results)))
    return SensorResult(
        run_requests=requests,
        skip_reason=skip_reason,
        cursor=SharedCursor.of(cursors, first).encode(),
        asset_events=events,
        dynamic_partitions_requests=partitions,
    )


def _explain(results: Mapping[str, SensorResult | SkipReason]) -> Iterator[str]:
    for name, result in results.items():
        reason = result.skip_reason if isinstance(result, SensorResult) else result
        yield f"{name}: {(reason and reason.skip_message) or 'done'}"
