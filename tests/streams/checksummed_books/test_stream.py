"""The real stream through real Kafka and Delta: table, plain fold and the exchange's checksums agree."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from assets.checksummed_books import checksummed_books
from lockstep import Topics
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.localdev.producer import produce
from lockstep.integrity.resume_options import IntegrityLost
from tests.streams.checksummed_books.plain_fold import Book, expected_rows
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import first_difference, heads, read_table, read_until, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from lockstep.features.localdev.recordings import Recorded


COLUMNS = ("_emit_offset", "_row", "side", "price_text", "quantity", "previous_quantity")


@pytest.fixture
def runs(broker: Broker, topic_family: str, tmp_path: Path) -> LocalRuns:
    """The real declaration on the topics of this test."""
    stream = dataclasses.replace(checksummed_books, topics=Topics(pattern=rf"{topic_family}\..+"))
    return LocalRuns(stream, broker.bootstrap_servers, tmp_path)


def test_table_plain_fold_and_exchange_agree_on_all_books(
    runs: LocalRuns, topic_family: str, recorded: Mapping[str, tuple[Recorded, ...]]
) -> None:
    """The second of two runs continues from the saved books of the first."""
    for part in (slice(0, 100), slice(100, None)):
        for book, messages in recorded.items():
            produce(runs.bootstrap_servers, f"{topic_family}.{book}", messages[part])
        assert runs.run() is RunOutcome.ENDED
    table = read_table(runs.folders.table)
    for book, messages in recorded.items():
        rows = rows_of(table, f"{topic_family}.{book}", COLUMNS)
        assert first_difference(expected_rows(message.value for message in messages), rows) is None
        assert checksums_from(rows, messages) == [told(message.value) for message in messages[1:]]
        assert read_until(runs.folders.ledger, f"{topic_family}.{book}") == len(messages)


def test_a_lost_update_halts_its_book_where_the_checksum_tells_and_no_other(
    runs: LocalRuns, topic_family: str, recorded: Mapping[str, tuple[Recorded, ...]]
) -> None:
    lossy = [*recorded["xmr_usd"][:40], *recorded["xmr_usd"][41:]]
    produce(runs.bootstrap_servers, f"{topic_family}.xmr_usd", lossy)
    produce(runs.bootstrap_servers, f"{topic_family}.sc_eur", recorded["sc_eur"])
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    (finding,) = lost.value.findings
    assert (finding.cause, finding.topic, finding.session) == ("checksum", f"{topic_family}.xmr_usd", "xmr_usd")
    assert finding.found == told(lossy[finding.offset].value)
    kept = [message.value for message in lossy[: finding.offset]]
    table = read_table(runs.folders.table)
    assert first_difference(expected_rows(kept), rows_of(table, finding.topic, COLUMNS)) is None
    assert read_until(runs.folders.ledger, finding.topic) == finding.offset
    assert read_until(runs.folders.ledger, f"{topic_family}.sc_eur") == len(recorded["sc_eur"])
    assert heads(runs.folders.table)[-1]["desired"] == "halted"


def checksums_from(rows: Iterable[tuple[object, ...]], messages: Sequence[Recorded]) -> list[str]:
    """Return the checksum after each update, of a book that is rebuilt from the table's rows alone."""
    book = Book()
    pending = iter([*rows, (len(messages),)])
    computed = []
    row = next(pending)
    for offset in range(len(messages)):
        while row[0] == offset:
            _, _, side, price, quantity, previous = row
            levels = book.asks if side == "ask" else book.bids
            assert levels.pop(str(price), None) == previous
            if quantity is not None:
                levels[str(price)] = str(quantity)
            row = next(pending)
        computed.append(book.checksum())
    return computed[1:]


def told(value: bytes) -> str:
    """Return the checksum in the text of an update."""
    return value.rpartition(b'"c":"')[2].partition(b'"')[0].decode()
