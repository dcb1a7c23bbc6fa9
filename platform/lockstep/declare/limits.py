"""Bounds of a stream. Every bound has a default that is safe on a laptop and a reason for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from lockstep.errors import DeclarationError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a stream; passing one is a named error or an alarm, never a surprise.

    Attributes:
        batch_messages: Most messages in one batch. 200,000 keeps the fixed cost of a batch (one
            small Spark job and one commit, about 0.1 CPU seconds) under half a microsecond a
            message; more only delays the rows. With `FileSize` the size of files decides instead.
        message_bytes: Largest message; larger ones are undecodable. Kafka's own default is 1 MiB,
            so 8 MiB leaves room for raised brokers; a range is read in memory.
        topics: Most topics of the stream; a pattern that matches more is taken for a mistake.
        holes: Most holes in one range before it ends early (each one is proven by a second read).
        batch_seconds: Hard deadline of a batch: past it the batch is cancelled and planned again, the
            third time in a row the run fails. 300 is what a batch of the default size takes at 1.5 ms
            a message, a very slow fold; it only ends what hangs. Not with `FileSize`.
        quarantine_share: Largest share of a batch that may be undecodable or refused by the
            transform: more is a bad deploy, not a bad message, and stops the stream.
        quarantine_burst: Below so many refused messages a batch is never stopped for its share.
        stop_timeout_seconds: How long a stop waits for the running batch before it is abandoned;
            below the time after which Dagster gives up on a cancelled run.
        handover_timeout_seconds: How long a new run waits for a silent writer before it claims.
    """

    batch_messages: int = 200_000
    message_bytes: int = 8 * 1024 * 1024
    topics: int = 2_000
    holes: int = 10_000
    batch_seconds: float = 300.0
    quarantine_share: float = 0.1
    quarantine_burst: int = 100
    stop_timeout_seconds: float = 20.0
    handover_timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Refuse a bound that lets nothing through."""
        for field in fields(self):
            value = getattr(self, field.name)
            whole = isinstance(field.default, int)
            kinds = int if whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
                problem = f"is not a positive {'whole number' if whole else 'number'}"
                raise DeclarationError(f"Limits.{field.name}", value, problem, "leave it out for the default")
