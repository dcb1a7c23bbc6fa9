"""One half of the proof of the prover: no clean table raises an alarm. The other half is test_prover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lockstep.rules import InRange, OnViolation
from lockstep.table.delta_log import open_delta_table
from lockstep.verify.verify import verify_stream
from tests.correctness.verify.clean_meters import clean_meters
from tests.correctness.verify.clean_tables import Made, clean_table
from tests.support.proven import PROVEN_OR_LOST

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

CLEAN_TABLES = 100
USUAL_CLEAN_TABLES = 2
"""The usual tier also proves the tables that test_prover forges."""

SEEDS = pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=() if n < USUAL_CLEAN_TABLES else pytest.mark.slow) for n in range(CLEAN_TABLES)],
)


def _check_proven(made: Made) -> None:
    found = verify_stream(made.runs.stream, made.runs.folders, made.runs.settings.kafka)
    assert (found.violations, made.told) == ((), made.told)
    if found.notes != ("no message could be read again",):  # retention deleted all messages
        assert found.status in PROVEN_OR_LOST, (found.notes, made.told)


@SEEDS
def test_a_clean_table_raises_no_alarm(broker: Broker, tmp_path: Path, seed: int) -> None:
    made = clean_table(seed, broker.bootstrap_servers, tmp_path)
    _check_proven(made)


@SEEDS
def test_a_clean_table_of_logs_that_were_joined_raises_no_alarm(broker: Broker, tmp_path: Path, seed: int) -> None:
    """Retention cut the logs before the first run: sessions start at their first snapshots."""
    made = clean_table(seed, broker.bootstrap_servers, tmp_path, joins=True)
    _check_proven(made)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in {0, 1, 36} else pytest.mark.slow) for seed in range(CLEAN_TABLES)]
)
def test_a_clean_table_of_meters_raises_no_alarm(broker: Broker, tmp_path: Path, seed: int) -> None:
    """Windows, reordering, timers, silent sessions, late messages, snapshots in parts.

    In table 36, messages of two sessions are released together, and each sets a timer in the past.
    """
    made = clean_meters(seed, broker.bootstrap_servers, tmp_path)
    _check_proven(made)


NUMBER_MAX = 6
RULES = (InRange("number", at_most=NUMBER_MAX, nullable=True, on_violation=OnViolation.QUARANTINE),)
SEEDS_WITHOUT_VIOLATION = frozenset({2, 6, 8, 15, 16, 20, 26, 30, 34, 44, 48, 58, 62, 72, 76, 86, 90, 97})
"""No row of these tables has a higher number, so the rule refuses nothing; in the other 82 it does."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in {0, 1, 68} else pytest.mark.slow) for seed in range(CLEAN_TABLES)]
)
def test_a_table_whose_rules_leave_messages_out_is_proven(seed: int, broker: Broker, tmp_path: Path) -> None:
    made = clean_meters(seed, broker.bootstrap_servers, tmp_path, rules=RULES)
    _check_proven(made)
    assert (RULES[0].name in _column(made.runs.folders.quarantine, "cause")) == (seed not in SEEDS_WITHOUT_VIOLATION)
    assert [number for number in _column(made.runs.folders.table, "number") if (number or 0) > NUMBER_MAX] == []


def _column(table: Path, name: str) -> list[Any]:
    values: list[Any] = pa.table(open_delta_table(table).to_pyarrow_table()).column(name).to_pylist()
    return values
