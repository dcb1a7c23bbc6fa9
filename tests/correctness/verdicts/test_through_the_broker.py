"""The verdict table, each cell through broker and engine: the verdict is read from ledger, head and side tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.correctness.verdicts.conftest import log_of, topic_of
from tests.correctness.verdicts.faulty import ODD_TIMES, Fault
from tests.correctness.verdicts.table import CLASSES, TABLE, Applied, Cell
from tests.streams.dydx_books.test_through_the_broker import COLUMNS
from tests.support.plain_reader import first_difference, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.table.ledger import LedgerRow
    from tests.correctness.verdicts.conftest import Outcome
    from tests.correctness.verdicts.faulty import Faulty


CELLS = [pytest.param(fault, name, id=f"{fault.value}: {name}") for fault, cells in TABLE.items() for name in cells]
CLEAN = Cell("accept", "", Applied.ALL)


@pytest.mark.parametrize(("fault", "name"), CELLS)
def test_rows_and_counts_of_a_cell(read_by: Callable[[str], Outcome], fault: Fault, name: str) -> None:
    assert_told(read_by(name), fault, TABLE[fault][name])


@pytest.mark.parametrize("name", CLASSES)
def test_without_a_fault_all_is_applied(read_by: Callable[[str], Outcome], name: str) -> None:
    assert_told(read_by(name), None, CLEAN)


@pytest.mark.parametrize("name", CLASSES)
def test_a_stream_halts_by_exactly_what_the_table_says(read_by: Callable[[str], Outcome], name: str) -> None:
    """A single commit halts the stream; it names each fault that the class does not tolerate."""
    halting = {fault: cells[name] for fault, cells in TABLE.items() if cells[name].applied is Applied.BEFORE}
    outcome = read_by(name)
    expected = {(topic_of(fault), cell.at(log_of(fault)), cell.cause) for fault, cell in halting.items()}
    assert expected == {(finding.topic, finding.offset, finding.cause) for finding in outcome.findings}
    assert outcome.head["desired"] == ("halted" if halting else "bounded")


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("fault", ODD_TIMES)
def test_an_odd_clock_does_not_move_the_watermark(read_by: Callable[[str], Outcome], fault: Fault, name: str) -> None:
    ledger = read_by(name).ledger
    assert ledger[topic_of(fault)].watermark == ledger[topic_of(None)].watermark


def assert_told(outcome: Outcome, fault: Fault | None, cell: Cell) -> None:
    log = log_of(fault)
    topic = topic_of(fault)
    at = cell.at(log)
    row = outcome.ledger[topic]
    applied = cell.applied.offsets(log, at)
    rows = rows_of(outcome.table, topic, COLUMNS)
    assert first_difference(log.folded(applied).rows, rows) is None
    assert row.until == (at if cell.applied is Applied.BEFORE else len(log.messages))
    assert_counted(row, cell, log, len(applied))
    aside = {"late": outcome.late, "quarantine": outcome.quarantine, "suspend": outcome.quarantine}
    if cell.verdict in {"quarantine", "suspend"} or (cell.verdict == "late" and cell.late):
        kept = {each["offset"]: each["cause"] for each in aside[cell.verdict] if each["topic"] == topic}
        assert kept[at] == cell.cause
    assert_loss_accepted(row, fault, cell)


def assert_counted(row: LedgerRow, cell: Cell, log: Faulty, applied: int) -> None:
    """Assert that each message is in one count, and that the remarks are those of the cell."""
    late = len(log.messages) - cell.at(log) if cell.applied is Applied.NOT_AFTER else cell.late
    quarantined = row.messages - applied - cell.dropped - late
    counts = (row.gaps, row.repeats, row.dropped, row.late, row.quarantined)
    assert counts == (cell.gaps, cell.repeats, cell.dropped, late, quarantined)
    assert (row.messages, row.accepted_without_row, row.skipped) == (row.until - row.start, 0, 0)
    became = (row.with_rows or 0) + row.dropped + row.quarantined + row.late + row.buffered
    assert row.messages + row.released == became
    assert row.buffered == row.released


def assert_loss_accepted(row: LedgerRow, fault: Fault | None, cell: Cell) -> None:
    """Assert that the ledger has the offsets of an accepted loss once the new snapshot has arrived."""
    log = log_of(fault)
    accepts = cell is not CLEAN and cell is TABLE[fault]["suspend"] and cell.verdict == "suspend"  # type: ignore[index]
    told = [(each.kind, each.start, each.until, each.session) for each in row.accepted]
    lost_from = cell.at(log) + (fault is Fault.GARBAGE)  # the session of garbage is unknown
    assert told == ([("accept-loss", lost_from, log.tail, None)] if accepts else [])
