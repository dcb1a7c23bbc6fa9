"""The recordings lead to the declarations of the shipped streams, or to a question that no message answers."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec

from lockstep.features.inference.sample import RawMessage, make_sample
from lockstep.features.localdev.recordings import (
    read_betting_market,
    read_checksummed_books,
    read_recorded_days,
    to_received,
    to_sent,
)
from tests.features.inference.feeds import propose, sample_recording

RECORDINGS = Path(__file__).parents[2] / "recordings"
BINANCE = RECORDINGS / "binance_l2"
EXCHANGES = RECORDINGS / "exchange_ws"


def test_order_books_are_linked_by_the_ids_of_their_differences() -> None:
    """As in assets/order_books.py: the key is the session, `lastUpdateId` a snapshot, `U` to `u` a link."""
    books = [to_sent(read_recorded_days(BINANCE, name)).messages for name in ("spot_btcusdt", "spot_ethusdt")]
    found = propose(sample_recording(books)).proposal
    assert found.integrity == "Strict(evidence=Linked())"
    assert found.session is None
    assert found.snapshot is not None
    assert (found.snapshot.path, found.snapshot.value) == (("lastUpdateId",), None)
    order = found.order
    assert (order.first, order.number, order.previous) == (("data", "U"), ("data", "u"), None)
    assert found.event_time is not None
    assert (found.event_time.path, found.event_time.unit) == (("data", "E"), "ms")


def test_futures_name_the_difference_before() -> None:
    found = propose(sample_recording([to_sent(read_recorded_days(BINANCE, "cm_btcusd_perp")).messages])).proposal
    assert found.integrity == "Strict(evidence=Linked())"
    assert (found.order.first, found.order.previous) == (("data", "U"), ("data", "pu"))


def test_a_book_as_received_is_not_promised_to_be_linked() -> None:
    """Its snapshot follows differences that it contains, and precedes others that it lacks."""
    found = propose(sample_recording([to_received(read_recorded_days(BINANCE, "cm_btcusd_perp"))])).proposal
    assert found.starts_at_snapshot
    assert any("Messages before the first snapshot" in each for each in found.questions)


def test_checksummed_books_ask_for_their_checksum() -> None:
    """As in assets/checksummed_books.py except for the checksum: messages do not contain its rule."""
    (path,) = EXCHANGES.glob("kraken*.gz")
    found = propose(sample_recording(list(read_checksummed_books(path).values()))).proposal
    assert found.integrity == "Strict(evidence=LogOnly())"
    assert found.snapshot is not None
    assert found.snapshot.path == (1, "as")
    assert any(each.startswith("Is `1.c` a checksum of the state?") for each in found.questions)


def test_betting_markets_prove_the_log_alone() -> None:
    """As in assets/betting_markets.py: `img` is a snapshot, `pt` the event time, and nothing proves the producer."""
    found = propose(sample_recording([read_betting_market(RECORDINGS / "betfair" / "mcm_1.181223995.jsonl.gz")]))
    proposal = found.proposal
    assert proposal.integrity == "Strict(evidence=LogOnly())"
    assert proposal.snapshot is not None
    assert (proposal.snapshot.path, proposal.snapshot.value) == (("mc", 0, "img"), True)
    assert proposal.event_time is not None
    assert (proposal.event_time.path, proposal.event_time.unit) == (("pt",), "ms")
    assert any("Which field proves that the producer sent every message?" in each for each in proposal.questions)


def test_numbers_out_of_order_are_a_window() -> None:
    """The ids of the connection are complete, and ten of them are late at its start."""
    (path,) = EXCHANGES.glob("dydx*.gz")
    lines = (line.partition(b": ")[2].strip() for line in gzip.decompress(path.read_bytes()).splitlines())
    values = [line for line in lines if line.startswith(b"{") and b'"message_id"' in line]
    key = msgspec.json.decode(values[0])["connection_id"].encode()
    raw = [RawMessage(0, at, key, value, at) for at, value in enumerate(values[:2_000])]
    found = propose(make_sample("books.dydx", raw)).proposal
    assert found.order.number == ("message_id",)
    assert found.integrity.startswith("FuzzyWindow(")
