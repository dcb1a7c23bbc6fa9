"""The proof of a compaction: what is in it, how the proofs of parts join, and what it names where something differs."""

from __future__ import annotations

import pytest

from lockstep.compaction.proof import ProofDiffers, RowProof, Span, compare_proofs, make_proof
from lockstep.compaction.row_order import RowPlace, find_segments
from tests.compaction.stream_table import Identity
from tests.compaction.test_gather import rows_at

PLACES: list[Identity] = [
    ("a", 0, 3, 0),
    ("a", 0, 3, 1),
    ("a", 0, 9, 0),
    ("a", 1, 5, 2),
    ("b", 0, 1, 0),
    ("b", 0, 2, 0),
]
SPANS = {
    ("a", 0): Span(3, RowPlace(3, 0), RowPlace(9, 0)),
    ("a", 1): Span(1, RowPlace(5, 2), RowPlace(5, 2)),
    ("b", 0): Span(2, RowPlace(1, 0), RowPlace(2, 0)),
}


def proof_of(places: list[Identity]) -> RowProof:
    rows = rows_at(places)
    return make_proof(rows, find_segments(rows))


def test_it_holds_rows_and_the_first_and_last_row_of_each_partition() -> None:
    assert (proof_of(PLACES).rows, proof_of(PLACES).spans) == (6, SPANS)


@pytest.mark.parametrize("cut", range(1, len(PLACES)))
def test_the_proofs_of_two_parts_are_together_that_of_the_whole_in_either_order(cut: int) -> None:
    first, second, whole = proof_of(PLACES[:cut]), proof_of(PLACES[cut:]), proof_of(PLACES)
    assert first.joined(second) == whole
    assert second.joined(first) == whole
    assert RowProof().joined(whole) == whole


@pytest.mark.parametrize(
    ("at", "place", "named"),
    [
        (0, ("a", 0, 2, 0), r"topic id a, partition 0: .*emit_offset=3.* became .*emit_offset=2"),
        (2, ("a", 0, 10, 0), r"topic id a, partition 0: .*emit_offset=9.* became .*emit_offset=10"),
        (3, ("a", 2, 5, 2), r"topic id a, partition 1: .* became None"),
    ],
)
def test_a_row_at_another_place_is_named_by_its_partition(at: int, place: Identity, named: str) -> None:
    moved = [*PLACES[:at], place, *PLACES[at + 1 :]]
    with pytest.raises(ProofDiffers, match=named):
        compare_proofs(proof_of(PLACES), proof_of(moved))


def test_a_place_in_the_middle_of_a_partition_is_told_by_the_digest() -> None:
    with pytest.raises(ProofDiffers, match=r"digest [0-9a-f]{16} became"):
        compare_proofs(proof_of(PLACES), proof_of([PLACES[0], ("a", 0, 4, 1), *PLACES[2:]]))
