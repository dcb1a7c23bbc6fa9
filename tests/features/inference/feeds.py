"""Samples of topics, made by tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lockstep.features.inference.proposal import ProposedStream, build_proposal
from lockstep.features.inference.sample import RawMessage, Sample, make_sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstep.features.localdev.recordings import Recorded


def sample_values(values: Iterable[object], key: bytes | None = b"k", topic: str = "plant.north") -> Sample:
    """Return messages of one partition; bytes are sent unchanged."""
    encoded = [value if isinstance(value, bytes) else msgspec.json.encode(value) for value in values]
    return make_sample(topic, [RawMessage(0, at, key, value, 0) for at, value in enumerate(encoded)])


def sample_keyed(messages: Iterable[tuple[str, object]], topic: str = "plant.north") -> Sample:
    """Return messages of one partition with keys."""
    raw = [
        RawMessage(0, at, key.encode(), msgspec.json.encode(value), 1_700_000_000_000 + at)
        for at, (key, value) in enumerate(messages)
    ]
    return make_sample(topic, raw)


def sample_recording(books: Sequence[Sequence[Recorded]], messages_max: int = 1_000) -> Sample:
    """Return a recording with one partition per book."""
    raw: list[RawMessage] = []
    for partition, book in enumerate(books):
        for at, each in enumerate(book[:messages_max]):
            raw.append(RawMessage(partition, at, each.key, each.value, each.timestamp_ms))
    return make_sample("books.all", raw)


def propose(sample: Sample) -> ProposedStream:
    return build_proposal("plant", sample)
