"""The recorded connection through Kafka, engine and Delta, in any batches: the same rows, and a consistent ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep import FuzzyWindow, Limits, NoIntegrity, Ordered, Sequence, Strict
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.localdev.producer import produce
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.table.ledger import read_ledger
from tests.streams.dydx_books.plain_fold import fold, last_of, wrong
from tests.streams.dydx_books.recording import as_numbered, as_received
from tests.streams.dydx_books.streams import AsTheyCome, books
from tests.streams.dydx_books.test_pure import HELD_MAX, RIGHT, SECOND
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import first_difference, read_table, read_until, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from lockstep.integrity.base import IntegrityClass
    from lockstep.table.ledger import LedgerRow
    from tests.streams.dydx_books.plain_fold import Row


COLUMNS = ("_sequence", "market", "side", "price", "size", "offset", "before")
REORDERING = FuzzyWindow(lateness=SECOND, reorder=True)
FIRST = 45
"""Messages of the first run: all out-of-order messages are among them, or wait at the end of one of its batches."""


def runs_of(broker: Broker, family: str, root: Path, integrity: IntegrityClass, limit: int) -> LocalRuns:
    stream = books(rf"{family}\..+", integrity, AsTheyCome() if isinstance(integrity, NoIntegrity) else None)
    return LocalRuns(stream, broker.bootstrap_servers, root).with_limits(Limits(batch_messages=limit))


@pytest.mark.parametrize(
    ("limit", "held"), [pytest.param(1, HELD_MAX, marks=pytest.mark.slow), (5, HELD_MAX - 1), (10_000, 0)]
)
def test_reordering_restores_the_numbers_in_any_batches(
    broker: Broker, topic_family: str, tmp_path: Path, limit: int, held: int
) -> None:
    """The first messages are read in batches of `limit`, the others by a second run in larger batches."""
    topic = f"{topic_family}.dydx"
    runs = runs_of(broker, topic_family, tmp_path, REORDERING, limit)
    for messages, size in ((as_received()[:FIRST], limit), (as_received()[FIRST:], max(limit, 997))):
        produce(broker.bootstrap_servers, topic, messages)
        assert runs.with_limits(Limits(batch_messages=size)).run() is RunOutcome.ENDED
    rows = rows_of(read_table(runs.folders.table), topic, COLUMNS)
    assert first_difference(fold((each.value for each in as_numbered()), newest=True).rows, rows) is None
    assert {row[0] for row in rows} == set(range(len(as_received())))
    places = rows_of(read_table(runs.folders.table), topic, ("_emit_offset", "_row"))
    assert places == sorted(set(places))
    ledger = read_ledger(runs.folders.ledger)
    assert held_most(ledger) == held
    assert_accounted(ledger)


def test_strict_halts_before_the_twelfth_message(broker: Broker, topic_family: str, tmp_path: Path) -> None:
    topic = f"{topic_family}.dydx"
    produce(broker.bootstrap_servers, topic, as_received()[:FIRST])
    runs = runs_of(broker, topic_family, tmp_path, Strict(evidence=Sequence()), 100)
    with pytest.raises(IntegrityLost, match=r"gap at .*/0 offset 11, .* expected 11, found 21, missing 11 to 20"):
        runs.run()
    assert read_until(runs.folders.ledger, topic) == 11


@pytest.mark.parametrize(("integrity", "wrong_levels"), [(Ordered(), 0), (NoIntegrity(), 3)])
def test_classes_that_do_not_reorder_end_as_the_fold_does(
    broker: Broker, topic_family: str, tmp_path: Path, integrity: IntegrityClass, wrong_levels: int
) -> None:
    """The levels are right by the highest offset; three are wrong if the last received level is kept."""
    topic = f"{topic_family}.dydx"
    runs = runs_of(broker, topic_family, tmp_path, integrity, 1_500)
    produce(broker.bootstrap_servers, topic, as_received())
    assert runs.run() is RunOutcome.ENDED
    rows: list[Row] = rows_of(read_table(runs.folders.table), topic, COLUMNS)  # type: ignore[assignment]  # as COLUMNS
    assert len(wrong(last_of(rows), RIGHT)) == wrong_levels
    assert_accounted(read_ledger(runs.folders.ledger))


def held_most(ledger: list[LedgerRow]) -> int:
    """Return the maximum number of messages that wait at the end of a batch."""
    held = most = 0
    for row in ledger:
        held += row.buffered - row.released
        most = max(most, held)
    assert held == 0
    return most


def assert_accounted(ledger: list[LedgerRow]) -> None:
    """Each message is in exactly one count, in each batch."""
    for row in ledger:
        became = (row.with_rows or 0) + row.accepted_without_row + row.skipped + row.dropped
        assert row.messages + row.released == became + row.quarantined + row.late + row.buffered
    assert sum(row.messages for row in ledger) == len(as_received())
