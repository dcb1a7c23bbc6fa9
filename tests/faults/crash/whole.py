"""The messages of the crash test, and its assertions about the final table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.features.localdev.producer import produce
from lockstep.features.localdev.recordings import read_recorded_books, read_recorded_days, to_sent
from tests.streams.order_books.expected_rows import COLUMNS, expected_rows
from tests.support.plain_reader import (
    first_difference,
    named_files,
    named_ledger_files,
    read_table,
    read_until,
    rows_of,
)

if TYPE_CHECKING:
    from lockstep.features.localdev.broker import Broker
    from lockstep.table.layout import StreamFolders

RECORDINGS = Path(__file__).parents[2] / "recordings" / "binance_l2"


def produced(broker: Broker, family: str, messages: int) -> dict[str, list[bytes]]:
    """Send each recording to a separate topic; return the messages of each topic."""
    sent = {}
    for book in read_recorded_books(RECORDINGS):
        taken = to_sent(read_recorded_days(RECORDINGS, book)).messages[:messages]
        produce(broker.bootstrap_servers, f"{family}.{book}", taken)
        sent[f"{family}.{book}"] = [message.value for message in taken]
    return sent


def assert_whole(folders: StreamFolders, sent: dict[str, list[bytes]]) -> None:
    """The table equals the plain fold of the log, and the ledger contains the files named by the commits."""
    table = read_table(folders.table)
    expected = {topic: expected_rows(values) for topic, values in sent.items()}
    for topic, rows in expected.items():
        assert first_difference(rows, rows_of(table, topic, COLUMNS)) is None
        assert read_until(folders.ledger, topic) == len(sent[topic])
    assert table.num_rows == sum(len(rows) for rows in expected.values())
    assert named_ledger_files(folders.table) == named_files(folders.ledger)
