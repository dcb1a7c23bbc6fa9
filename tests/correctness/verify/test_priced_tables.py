"""Tables of a fold with a lookup of tariffs: each batch is proven with the version that it read, and only with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.table.ledger import read_ledger
from lockstep.verify import lookups
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.correctness.verify.priced_meters import PricedTables

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from lockstep.verify.ledger import LedgerRange, ReadVersion
    from tests.correctness.verify.clean_tables import Made

TABLES = 60
USUAL = {1, 5}
"""Windows with late messages, reordering with timers."""


def prove(made: Made) -> tuple[InvariantStatus, tuple[object, ...]]:
    found = verify_stream(made.runs.stream, made.runs.folders, made.runs.settings.kafka)
    return found.status, found.violations


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in USUAL else pytest.mark.slow) for seed in range(TABLES)]
)
def test_a_table_whose_fold_looks_up_is_proven_with_the_versions_of_its_batches(
    broker: Broker, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = PricedTables(seed, broker.bootstrap_servers, tmp_path).make()
    assert (*prove(made), made.told) == (InvariantStatus.PROVEN, (), made.told)
    versions = {each.version for row in read_ledger(made.runs.folders.ledger) for each in row.lookups or ()}
    if seed in USUAL:
        assert len(versions) > 1
        monkeypatch.setattr(lookups, "_find_read", _find_oldest)
        assert prove(made)[0] is InvariantStatus.VIOLATED


def _find_oldest(_: object, row: LedgerRange) -> ReadVersion | None:
    """Return the first version, as if each batch had read it."""
    return next((type(each)(each.name, 0, each.table_id) for each in row.lookups), None)
