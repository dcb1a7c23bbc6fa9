"""The query of docs/reading.md returns the rows of the states in each reader of the page."""

from __future__ import annotations

import dataclasses
import random
from decimal import Decimal
from typing import Any

import pytest

from lockstep.features.compaction.run import compact_stream
from lockstep.features.current.refresh import read_current_version, refresh_current
from lockstep.features.current.view import make_view
from lockstep.operations.inspect.state import StateFilter, read_states
from lockstep.operations.lifecycle import close_hour
from tests.integration.readers.books import books, fold_plainly, make_messages
from tests.integration.readers.written import READERS, read_block, run_snippet
from tests.support.offline_proof import prove
from tests.support.offline_stream import Offline

TOPICS = ("books.x", "books.y")
COLUMNS = ("_topic", "_session", "side", "price", "quantity")
EVERY_READER = [pytest.param(name, marks=pytest.mark.spark if name == "spark" else ()) for name in READERS]
Current = dict[tuple[str, str, str, Decimal], Decimal]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Offline, Current]:
    """A table of two topics with the same sessions, in many batches, and its current rows."""
    rng = random.Random(7)  # noqa: S311  # reproducible
    offline = Offline(books(), tmp_path_factory.mktemp("books"))
    batches = [{topic: make_messages(rng, rng.randrange(1, 25)) for topic in TOPICS} for _ in range(8)]
    offline.run(*batches)
    current: Current = {}
    for topic in TOPICS:
        sent = [message for batch in batches for message in batch[topic]]
        current |= {(topic, *key): quantity for key, quantity in fold_plainly(sent).items()}
    return offline, current


@pytest.mark.parametrize("reader", EVERY_READER)
def test_the_query_of_the_page_returns_the_rows_of_the_states(
    reader: str, written: tuple[Offline, Current], request: pytest.FixtureRequest
) -> None:
    spark = {"spark": request.getfixturevalue("spark")} if reader == "spark" else {}
    offline, current = written
    table = str(offline.folders.table)
    assert len(current) >= 10
    query = read_block("sql current")
    assert read_current(reader, "current", query, table=table, **spark) == current
    close_hour(offline.folders)
    compact_stream(offline.folders)
    assert read_current(reader, "current", query, table=table, **spark) == current


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Offline, Current]:
    """A table with a current table that was refreshed in the middle, and its current rows."""
    rng = random.Random(11)  # noqa: S311  # reproducible
    stream = dataclasses.replace(books(), current=True)
    offline = Offline(stream, tmp_path_factory.mktemp("refreshed"))
    sent = list[tuple[str, bytes]]()
    for _ in range(2):
        for _ in range(4):
            messages = make_messages(rng, rng.randrange(1, 25))
            offline.run({"books.x": messages})
            sent += messages
        if not (offline.folders.current / "_delta_log").exists():
            refresh_current(stream, offline.folders)
    return offline, {("books.x", *key): quantity for key, quantity in fold_plainly(sent).items()}


@pytest.mark.parametrize("reader", [each for each in EVERY_READER if each.values != ("deltalake",)])
def test_the_query_of_the_rows_of_now_reads_the_current_table_and_the_changes_since(
    reader: str, refreshed: tuple[Offline, Current], request: pytest.FixtureRequest
) -> None:
    spark = {"spark": request.getfixturevalue("spark")} if reader == "spark" else {}
    offline, current = refreshed
    given = {"table": str(offline.folders.table), "current": str(offline.folders.current)}
    assert read_current(reader, "now", read_block("sql now"), **given, **spark) == current


def test_the_query_of_the_rows_of_now_is_that_of_the_product(refreshed: tuple[Offline, Current]) -> None:
    base = read_current_version(refreshed[0].folders).base
    assert base is not None
    since = "(SELECT coalesce(max(commit_hour), '') FROM current_rows)"
    made = make_view(base, current="current_rows", changes="changes", since=since)
    assert read_block("sql now") == made.replace('"', "") + "\n"


def test_the_states_have_these_rows_and_the_proof_says_so(written: tuple[Offline, Current]) -> None:
    offline, current = written
    states = read_states(offline.stream, offline.root / "tables", StateFilter())
    assert {(each.topic, each.session) for each in states.sessions} >= {key[:2] for key in current}
    found = prove(offline)
    compared = f"{len(current)} keys of {len(states.sessions)} sessions"
    assert found.violations == ()
    assert found.invariants[-1].checked.startswith(compared)


def read_current(reader: str, block: str, query: str, **given: Any) -> Current:
    frame = run_snippet(f"{reader} {block}", query=query, **given)
    found: list[dict[str, Any]] = READERS[reader](frame)
    rows = [tuple(row[name] for name in COLUMNS) for row in found]
    assert len({row[:4] for row in rows}) == len(rows), "two rows of one key"
    return {row[:4]: row[4] for row in rows}
