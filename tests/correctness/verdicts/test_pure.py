"""The verdict table, each cell in the engine's own fold: the verdict on the message, and the final rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.testing import SentMessage, run
from tests.correctness.verdicts.faulty import MATTERING, ODD_TIMES, Fault, clean_log, faulty
from tests.correctness.verdicts.table import CLASSES, TABLE, Applied
from tests.streams.dydx_books.streams import AsTheyCome, books

if TYPE_CHECKING:
    from lockstep.testing import RunResult
    from tests.correctness.verdicts.faulty import Faulty
    from tests.streams.dydx_books.streams import Books, LevelSet

CELLS = [
    pytest.param(fault, name, id=f"{fault.value}: {name}")
    for fault, cells in TABLE.items()
    for name in cells
    if fault is not Fault.YEAR_9999  # absurd is a time ahead of the plan of a batch, which the pure run does not have
]


def ran(name: str, log: Faulty) -> RunResult[Books, LevelSet]:
    values: list[SentMessage[object]] = [
        SentMessage(value=each.value, key=each.key, timestamp_ms=each.timestamp_ms) for each in log.messages
    ]
    return run(books("verdicts", CLASSES[name], AsTheyCome()), *values)  # type: ignore[arg-type]  # bytes of any type


def test_no_cell_of_the_table_is_missing() -> None:
    assert set(TABLE) == set(Fault)
    assert {fault: set(CLASSES) for fault in Fault} == {fault: set(cells) for fault, cells in TABLE.items()}


@pytest.mark.parametrize(("fault", "name"), CELLS)
def test_the_verdict_and_the_rows_of_a_cell(fault: Fault, name: str) -> None:
    log = faulty(fault)
    cell = TABLE[fault][name]
    found = ran(name, log)
    at = cell.at(log)
    verdict = found.verdicts[at]
    assert (verdict.judgement.value, verdict.cause) == (cell.verdict, cell.cause)
    expected = log.folded(cell.applied.offsets(log, at))
    assert [row[1:] for row in expected.rows] == [
        (row.market, row.side, row.price, row.size, row.offset, row.before) for row in found.rows
    ]
    assert (found.finding is not None) is (cell.applied is Applied.BEFORE)


@pytest.mark.parametrize("name", CLASSES)
def test_without_a_fault_nothing_is_remarked(name: str) -> None:
    assert {(verdict.judgement.value, verdict.cause) for verdict in ran(name, clean_log()).verdicts} == {("accept", "")}


@pytest.mark.parametrize("fault", MATTERING)
def test_what_each_fault_does_to_a_fold_without_a_gate(fault: Fault) -> None:
    """If a class drops a message that was sent twice, the rows are those of the log without the fault."""
    log = faulty(fault)
    clean = clean_log()
    unread = {log.at} if fault in {Fault.GARBAGE, Fault.RAISES} else set[int]()
    ended = log.folded([offset for offset in range(log.tail) if offset not in unread])
    right = clean.folded(range(clean.tail))
    assert (len(ended.rows), ended.levels) != (len(right.rows), right.levels)
    for cell in TABLE[fault].values():
        if cell.verdict == "duplicate" or cell.applied is Applied.IN_ORDER:
            restored = log.folded(cell.applied.offsets(log, cell.at(log)))
            assert restored.rows == clean.folded(range(len(clean.messages))).rows


@pytest.mark.parametrize("fault", ODD_TIMES)
def test_an_odd_clock_changes_no_content(fault: Fault) -> None:
    log = faulty(fault)
    clean = clean_log()
    assert log.folded(range(len(log.messages))).rows == clean.folded(range(len(clean.messages))).rows
