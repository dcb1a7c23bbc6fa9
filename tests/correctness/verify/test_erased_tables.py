"""An erasure amid windows, timers and buffered messages: the session is gone, all else is as without the erasure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.table.delta_log import has_log, open_delta_table
from lockstep.verify.verify import verify_stream
from tests.correctness.verify.erased_meters import SESSION, ErasedMeters
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from tests.support.local_runs import LocalRuns

NOTHING_TO_ERASE = {28, 43, 58}
"""With these seeds no message of the session is read, or it halts the stream."""
SEEDS = [seed for seed in range(60) if seed not in NOTHING_TO_ERASE]
USUAL = 20
"""Its session has 11 rows, 4 state entries, 7 late and 9 quarantined messages, among buffered messages and timers."""


@pytest.mark.fault("F77")
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed == USUAL else pytest.mark.slow) for seed in SEEDS]
)
def test_an_erased_session_leaves_the_others_as_they_would_be_without_it(
    broker: Broker, tmp_path: Path, seed: int
) -> None:
    made = ErasedMeters(seed, broker.bootstrap_servers, tmp_path)
    made.create_topics()
    made.read_more()
    done = made.erase()
    assert done is not None, "nothing of the session was read, or it has halted the stream"
    check_proven(made, "after the erasure")
    parts = done.plan.partitions
    assert seed != USUAL or all(sum(getattr(part, name) for part in parts) for name in ("state_entries", "late"))
    made.read_more(without=SESSION)
    check_proven(made, "after more messages")
    topic = done.plan.topic
    assert rows_of_others(made.runs, topic) == rows_of_others(made.twin, topic), made.told
    assert [row for row in side_rows(made.runs) if is_erased(row, topic)] == []
    run_housekeeping(made.runs.folders, retention_seconds=3600.0)
    check_proven(made, "after housekeeping")


def check_proven(made: ErasedMeters, when: str) -> None:
    found = verify_stream(made.runs.stream, made.runs.folders, made.runs.settings.kafka)
    assert (found.violations, found.status.value, made.told, when) == ((), "proven", made.told, when)


def rows_of_others(runs: LocalRuns, topic: str) -> list[dict[str, object]]:
    """Return the rows by partition and emit offset, without row numbers, which move up at offsets of the session."""
    rows = [row for row in read_table(runs.folders.table).to_pylist() if not is_of_session(row, topic)]
    rows.sort(key=lambda row: tuple(row[name] for name in ("_topic", "_partition", "_emit_offset", "_row")))
    return [{name: value for name, value in row.items() if name not in {"commit_hour", "_row"}} for row in rows]


def is_of_session(row: dict[str, object], topic: str) -> bool:
    return row["_session"] == SESSION and topic in {"", row["_topic"]}


def side_rows(runs: LocalRuns) -> list[dict[str, object]]:
    """Return all quarantined and late messages."""
    sides = [side for side in (runs.folders.quarantine, runs.folders.late) if has_log(side)]
    return [row for side in sides for row in pa.table(open_delta_table(side).to_pyarrow_table()).to_pylist()]


def is_erased(row: dict[str, object], topic: str) -> bool:
    """Whether an erasure should have emptied a message of the quarantine or late table."""
    return topic in {"", row["topic"]} and (row["session"] == SESSION or row["key"] == SESSION.encode())
