"""One half of the proof of the prover: every seeded violation is found. The other half is test_clean_tables."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from lockstep.table.layout import StreamFolders
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.correctness.verify.clean_meters import clean_meters
from tests.correctness.verify.clean_tables import clean_table
from tests.correctness.verify.forging import Forged
from tests.correctness.verify.seeds import METER_SEEDS, SEEDS
from tests.support.proven import PROVEN_OR_LOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from tests.correctness.verify.clean_tables import Made
    from tests.correctness.verify.seeds import Found

SEEDED = 100
USUAL_SEEDED = len(SEEDS)
GOOD_TABLES, JOINED_TABLE = (1, 3, 4, 6, 8, 11, 14), 11
"""Seeds of the forged tables: their classes tolerate faults, so that every kind of entry occurs."""


@pytest.fixture(scope="module")
def good_tables(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    made = []
    for seed in GOOD_TABLES:
        root = tmp_path_factory.mktemp(f"good{seed}_")
        made.append(clean_table(seed, broker.bootstrap_servers, root, expires=False, joins=seed == JOINED_TABLE))
    return made


GOOD_METERS = (1, 4, 5, 6, 9, 17)
"""Seeds of the forged tables of meters."""


@pytest.fixture(scope="module")
def good_meters(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    made = []
    for seed in GOOD_METERS:
        root = tmp_path_factory.mktemp(f"meters{seed}_")
        made.append(clean_meters(seed, broker.bootstrap_servers, root, expires=False))
    return made


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=() if n < USUAL_SEEDED else pytest.mark.slow) for n in range(SEEDED)]
)
def test_a_seeded_violation_is_found_and_named(good_tables: list[Made], tmp_path: Path, number: int) -> None:
    """Each kind of violation in turn, at a random place in a random table."""
    _is_found(SEEDS[number % len(SEEDS)], number, good_tables, tmp_path)


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=() if n < len(METER_SEEDS) else pytest.mark.slow) for n in range(SEEDED // 2)],
)
def test_a_violation_of_what_waits_is_found_and_named(good_meters: list[Made], tmp_path: Path, number: int) -> None:
    """The same for late messages, held-back messages, timers and watermarks."""
    _is_found(METER_SEEDS[number % len(METER_SEEDS)], number, good_meters, tmp_path)


def test_the_tables_that_are_forged_are_clean_and_hold_something_of_everything(
    good_tables: list[Made], good_meters: list[Made]
) -> None:
    """An absent entry is never compared: the seeds were chosen for this."""
    seen: dict[str, int] = {}
    for made in (*good_tables, *good_meters):
        found = verify_stream(made.runs.stream, made.runs.folders, made.runs.settings.kafka)
        assert (found.violations, made.told) == ((), made.told)
        assert found.status in PROVEN_OR_LOST, made.told
        for name, count in found.counts.items():
            seen[name] = seen.get(name, 0) + count
    elsewhere = {"accepted_loss", "lost_sessions", "lost_messages"}  # the latter: in `correctness/losses`
    assert [name for name, count in seen.items() if not count and name not in elsewhere] == []


def _is_found(seed: Callable[[Forged, random.Random], Found], number: int, tables: list[Made], tmp_path: Path) -> None:
    rng = random.Random(number)  # noqa: S311  # reproducible
    for made in rng.sample(tables, len(tables)):
        folders = StreamFolders(made.runs.folders.stream, tmp_path / made.runs.root.name)
        forged = Forged.copy(made.runs.folders.table.parent, folders.table.parent)
        kinds = seed(forged, rng)
        if kinds is not None:
            break
    else:
        pytest.fail(f"no table has a place for {seed.__name__}")
    found = verify_stream(made.runs.stream, folders, made.runs.settings.kafka)
    assert found.status is InvariantStatus.VIOLATED, seed.__name__
    assert {violation.kind for violation in found.violations} & kinds, (seed.__name__, found.violations[:5])
