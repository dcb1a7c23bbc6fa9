"""Random histories of batches, compactions, rewinds, erasures and retention: the current table has the newest rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.features.current.histories import History

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 12
SEEDS = 270
USUAL = 2


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < USUAL else pytest.mark.slow) for seed in range(SEEDS)]
)
def test_the_current_table_has_the_rows_of_the_model(seed: int, tmp_path: Path) -> None:
    history = History(seed, tmp_path)
    for _ in range(STEPS):
        history.step()
    history.refresh()
