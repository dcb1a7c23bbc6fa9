"""Offsets without a message and their causes: intervals have the same result as single offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from lockstep.kafka.reader import UNPROVEN, add_offsets, mark_proven
from lockstep.model.finding import Hole

OFFSETS = some.sets(some.integers(0, 40))


def spans_of(offsets: set[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    add_offsets(spans, sorted(offsets))
    return spans


def by_offset(holes: list[Hole]) -> dict[int, str]:
    return {at: hole.cause for hole in holes for at in range(hole.start, hole.until)}


@given(OFFSETS, OFFSETS, OFFSETS)
def test_intervals_have_the_causes_of_their_offsets(missing: set[int], aborted: set[int], markers: set[int]) -> None:
    causes = dict.fromkeys(sorted(missing), UNPROVEN)
    causes |= dict.fromkeys(missing & markers, "marker") | dict.fromkeys(missing & aborted, "aborted")
    holes = [Hole(start=start, until=until, cause=UNPROVEN) for start, until in spans_of(missing)]
    found = list(mark_proven(mark_proven(holes, spans_of(aborted), "aborted"), spans_of(markers), "marker"))
    assert by_offset(found) == causes
    assert all(hole.start < hole.until for hole in found)
    assert [hole.start for hole in found] == sorted(hole.start for hole in found)


def test_a_gap_costs_its_intervals_not_its_offsets() -> None:
    gap = Hole(start=0, until=10**12, cause=UNPROVEN)
    assert list(mark_proven([gap], [(5, 10**11)], "aborted")) == [
        Hole(start=0, until=5, cause=UNPROVEN),
        Hole(start=5, until=10**11, cause="aborted"),
        Hole(start=10**11, until=10**12, cause=UNPROVEN),
    ]
