"""Asks Kafka why offsets hold no message, and compares that with the causes in the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.operations.verify.kafka_log import KafkaLog, Wanted, offset_of
from lockstep.operations.verify.proof import Place, ViolationKind, Violations

Gaps = list[tuple[int, int, str]]
"""(start, until, cause)."""


def check_causes(kafka: KafkaLog, found: Sequence[tuple[Place, Gaps]], violations: Violations) -> None:
    """A reader that sees uncommitted messages finds those of aborted transactions, and nothing where a marker is."""
    asked = [(place, gaps) for place, gaps in found if gaps]
    seen: list[set[int]] = [set() for _ in asked]
    wanted = [Wanted(place.topic, place.partition, gaps[0][0], gaps[-1][1]) for place, gaps in asked]
    for piece in kafka.read(wanted, committed=False):
        seen[piece.index].update(map(offset_of, piece.messages))
    for (place, gaps), offsets in zip(asked, seen, strict=True):
        _compare(place, gaps, offsets, violations)


def _compare(place: Place, gaps: Gaps, seen: set[int], violations: Violations) -> None:
    for start, until, cause in gaps:
        for offset in range(start, until):
            aborted = offset in seen
            if aborted is not (cause == "aborted"):
                expected = "aborted" if aborted else "marker, or unproven"
                violations.add(ViolationKind.HOLE_CAUSE, place, offset, expected, cause)
