"""An open transaction: readers with `isolation.level=read_committed` wait at its first offset."""

from __future__ import annotations

import msgspec


class OpenTransaction(msgspec.Struct, frozen=True):
    """A partition whose last stable offset is below its high watermark.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        stable_end: Last stable offset, the first offset of the transaction.
        high_watermark: High watermark.
        seconds: Age of the transaction: since its first message by Kafka's timestamp, or since a run has observed its
            last stable offset first.
    """

    topic: str
    partition: int
    stable_end: int
    high_watermark: int
    seconds: float

    @property
    def hidden_offsets(self) -> int:
        """Number of offsets that readers wait for."""
        return self.high_watermark - self.stable_end

    @property
    def place(self) -> tuple[str, int, int]:
        """Identity of the transaction: topic, partition and last stable offset."""
        return self.topic, self.partition, self.stable_end

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition}: {self.hidden_offsets} offsets from {self.stable_end} on "
            f"wait behind an open transaction, for {self.seconds:.0f} s now"
        )
