"""Finds how far a log is corrupt: record batches that no client can take apart, and what a broker cannot find there.

What was only hurt on its way reads well the next time; what lies corrupt on the broker never does. One fetch gives one
record batch here: where a fetch gives several, librdkafka 2.16 ends its process at some corrupt ones (an assertion).
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.kafka.client import Configuration, RangeConsumer, consumer
from lockstep.kafka.reader import Range, Unreadable, read

LOOKS = 2
"""So often the first offset must fail again before anything is called corrupt."""
STEPS_MAX = 64
"""Offsets that are tried one by one, so that nothing readable is passed over; then larger and larger steps."""
ONE_BATCH: Configuration = {"fetch.message.max.bytes": 1}
"""The broker gives one whole record batch all the same."""

Readable = Callable[[int], bool | None]
"""Whether an offset can be read; None where Kafka does not say."""


def readable_again(configuration: Configuration, corrupt: Range) -> int | None:
    """The first offset from `corrupt.start` on that can be read; `corrupt.until` where none before it can.

    None when Kafka does not say.
    """
    client = consumer({**configuration, **ONE_BATCH})
    try:
        return first_readable(lambda offset: _readable(client, corrupt, offset), corrupt.start, corrupt.until)
    finally:
        client.close()


def first_readable(readable: Readable, start: int, until: int) -> int | None:
    """See `readable_again`. Pure but for what it asks."""
    failing = start
    for offset in (*[start] * LOOKS, *range(start + 1, min(until, start + STEPS_MAX))):
        if (found := readable(offset)) is not False:
            return None if found is None else offset
        failing = offset
    step = STEPS_MAX
    while failing + step < until:
        if (found := readable(failing + step)) is None:
            return None
        if found:
            return _boundary(readable, failing, failing + step)
        failing, step = failing + step, 2 * step
    return _boundary(readable, failing, until)


def _boundary(readable: Readable, failing: int, fine: int) -> int | None:
    """Where reading begins to work between an offset that fails and one that does not."""
    while fine - failing > 1:
        middle = (failing + fine) // 2
        if (found := readable(middle)) is None:
            return None
        failing, fine = (failing, middle) if found else (middle, fine)
    return fine


def _readable(client: RangeConsumer, corrupt: Range, offset: int) -> bool | None:
    for run in read(client, [Range(corrupt.topic, corrupt.partition, offset, offset + 1)]):
        if isinstance(run, Unreadable):
            return False if run.is_corrupt else None
    return True
