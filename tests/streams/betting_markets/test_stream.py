"""The real stream through real Kafka and Delta: table, plain fold and the peer library agree."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from assets.betting_markets import betting_markets
from lockstep import NoIntegrity, Topics
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.localdev.producer import produce
from lockstep.integrity.resume_options import IntegrityLost
from tests.streams.betting_markets.plain_fold import Market, digest, fold
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import first_difference, read_table, read_until, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from lockstep.features.localdev.recordings import Recorded


COLUMNS = ("_emit_offset", "_row", "runner", "handicap", "part", "price", "value", "previous_value")


@pytest.fixture
def runs(broker: Broker, topic_family: str, tmp_path: Path) -> LocalRuns:
    """The real declaration on the topics of this test."""
    stream = dataclasses.replace(betting_markets, topics=Topics(pattern=rf"{topic_family}\..+"))
    return LocalRuns(stream, broker.bootstrap_servers, tmp_path)


def test_table_plain_fold_and_peer_agree_on_the_whole_market(
    runs: LocalRuns, topic_family: str, recorded: Sequence[Recorded], peer: dict[str, Any]
) -> None:
    """The second of two runs continues from the saved market of the first."""
    topic = f"{topic_family}.{recorded[0].book}"
    for part in (recorded[:9_000], recorded[9_000:]):
        produce(runs.bootstrap_servers, topic, part)
        assert runs.run() is RunOutcome.ENDED
    rows = rows_of(read_table(runs.folders.table), topic, COLUMNS)
    market, expected = fold(message.value for message in recorded)
    assert first_difference(expected, rows) is None
    books = books_from(rows, market.runners, [*range(1_000, len(recorded), 1_000), len(recorded)])
    assert {at: books[int(at)] for at in peer["books_every_2000"]} == peer["books_every_2000"]
    assert [[at, digest(books[at])] for at in range(1_000, len(recorded), 1_000)] == peer["digest_every_1000"]
    assert books[len(recorded)] == peer["final"]
    assert read_until(runs.folders.ledger, topic) == len(recorded)


def test_a_history_without_an_image_is_refused_by_name(
    runs: LocalRuns, topic_family: str, basic: Sequence[Recorded]
) -> None:
    produce(runs.bootstrap_servers, f"{topic_family}.{basic[0].book}", basic)
    with pytest.raises(IntegrityLost, match=rf"unknown session at .*/0 offset 0, session '{basic[0].book}'"):
        runs.run()


def test_without_a_promise_the_history_folds_to_each_of_the_peers_books(
    runs: LocalRuns, topic_family: str, basic: Sequence[Recorded], basic_books: list[dict[str, Any]]
) -> None:
    topic = f"{topic_family}.{basic[0].book}"
    produce(runs.bootstrap_servers, topic, basic)
    assert runs.of(dataclasses.replace(runs.stream, integrity=NoIntegrity())).run() is RunOutcome.ENDED
    rows = rows_of(read_table(runs.folders.table), topic, COLUMNS)
    runners = {runner["selectionId"] for runner in basic_books[0]["runners"]}
    books = books_from(rows, runners, range(1, len(basic) + 1))
    for rebuilt, told in zip(books.values(), basic_books, strict=True):
        last_prices = [[runner["selectionId"], runner["lastPriceTraded"]] for runner in told["runners"]]
        assert [book[:2] for book in rebuilt] == sorted(last_prices)


def books_from(
    rows: Sequence[tuple[object, ...]], runners: set[int], wanted: Iterable[int]
) -> dict[int, list[list[object]]]:
    """Return the book after each number of messages, by the rows alone; their previous values must be correct."""
    market = Market(runners=runners)
    at = 0
    books = {}
    for messages in wanted:
        while at < len(rows) and rows[at][0] < messages:  # type: ignore[operator]  # an offset
            *key, value, previous = rows[at][2:]
            assert market.changed(tuple(key), value) == [(*key, value, previous)]  # type: ignore[arg-type]  # of a table
            at += 1
        books[messages] = market.book()
    return books
