"""`lockstep.testing.choose_rows` returns the rows that a delivery writes, without a table and a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep import Kind
from lockstep.delivery import Delivery, KafkaTopic, RowSource
from lockstep.testing import choose_rows, run
from tests.features.delivery.postgres_rows import Alert, to_alert
from tests.support.kept_stream import Kept, Row, keeping, message

if TYPE_CHECKING:
    from lockstep.testing import RunResult

TARGET = KafkaTopic(topic="alerts")


def is_x(row: Row, origin: RowSource) -> bool:
    """Select the rows of one name and sequence."""
    return row.name == "x" and origin.sequence == 2


def is_wrong(row: Row, origin: RowSource) -> bool:
    """Raise ValueError."""
    raise ValueError(f"{row.name} of {origin.session}")


@pytest.fixture
def result() -> RunResult[Kept, Row]:
    messages = [message(Kind.SNAPSHOT, 1, x=1), message(Kind.UPDATE, 2, x=2, y=3), message(Kind.UPDATE, 3, x=1)]
    return run(keeping(), *messages, key="boiler")


def test_rows_are_chosen_and_made_by_the_functions_of_the_delivery(result: RunResult[Kept, Row]) -> None:
    (row,) = choose_rows(Delivery(name="alerts", target=TARGET, where=is_x, select=to_alert), result)
    assert row.value == Alert("x", 3, 3, "boiler")
    assert (row.origin.topic, row.origin.offset, row.origin.row, row.origin.cause) == ("testing", 1, 0, "update")


def test_without_functions_all_rows_are_delivered_in_order(result: RunResult[Kept, Row]) -> None:
    rows = choose_rows(Delivery(name="alerts", target=TARGET), result)
    assert [each.value for each in rows] == [each.row for each in result.proven]
    assert [each.origin.identity[2:] for each in rows] == [(1, 0), (1, 1), (2, 0)]


def test_the_error_of_a_function_is_raised(result: RunResult[Kept, Row]) -> None:
    with pytest.raises(ValueError, match="x of boiler"):
        choose_rows(Delivery(name="alerts", target=TARGET, where=is_wrong), result)
