"""The protocol keeps its invariants in every interleaving; each simplification breaks an invariant."""

from __future__ import annotations

import pytest

from tests.correctness.model.exploring import explore
from tests.correctness.model.protocol import Bounds, Simplification

S = Simplification
BREAKS = {
    S.CHECK_ONLY_AFTER_CONFLICT: "a fenced writer is visible",
    S.RETRY_BLINDLY: "an epoch came back",
    S.EPOCH_KEPT_FROM_BEFORE: "a fenced writer is visible",
    S.SIDE_TABLES_FIRST: "a side table holds what no commit names",
    S.SIDE_TABLES_WHENEVER: "more than the newest batch is missing in a side table",
    S.WRITE_ANYWHERE: "a fenced writer is visible",
    S.HOUR_KEPT_FROM_BEFORE: "an hour that was closed has grown",
    S.REWIND_NAMES_NO_BATCH: "a batch is lost or doubled",
    S.OFFSETS_IN_MEMORY: "offsets are lost or doubled",
}


REWINDS = Bounds(compactions=0, rewinds=1)
BOUNDS = {"compaction": Bounds(), "closed hours": Bounds(compactions=0, closes=1), "a rewind": REWINDS}
BOUNDS_OF = {S.HOUR_KEPT_FROM_BEFORE: BOUNDS["closed hours"], S.REWIND_NAMES_NO_BATCH: REWINDS}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_every_interleaving_of_two_writers_keeps_every_invariant(bounds: Bounds) -> None:
    found = explore(bounds)
    assert found.broken is None, found.way
    assert found.worlds > 15_000, "so few worlds prove nothing"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "bounds",
    [Bounds(writers=3, batches=1, compactions=0), Bounds(compactions=0, rewinds=2)],
    ids=["three writers", "two rewinds"],
)
def test_every_interleaving_of_more_processes_keeps_every_invariant(bounds: Bounds) -> None:
    assert explore(bounds).broken is None


@pytest.mark.parametrize("without", Simplification)
def test_each_simplification_breaks_an_invariant(without: Simplification) -> None:
    found = explore(BOUNDS_OF.get(without, Bounds()), frozenset({without}))
    assert found.broken == BREAKS[without]
    assert found.way
