"""Windows through broker and engine, in small batches and several runs, have the rows of the plain definition."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Kind, Limits, Suspend
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.feed import ProducerRecord
from tests.support.plain_reader import read_table
from tests.support.proven import PROVEN_OR_LOST
from tests.support.window_folds import (
    FUZZY,
    ListFold,
    Picky,
    Silence,
    Sliding,
    Tumbling,
    Value,
    a_stream,
    disordered,
    expected_of,
)

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

SEED = 7
LAST = ("end", 100_000, 0)


@pytest.mark.parametrize("reorder", [False, True])
@pytest.mark.parametrize("fold", [Tumbling(), Sliding(), Silence()], ids=lambda fold: type(fold).__name__)
def test_windows_are_those_of_the_definition_and_the_proof_agrees(
    feed: Feed, runs: LocalRuns, fold: ListFold, *, reorder: bool
) -> None:
    stream = a_stream(fold, replace(FUZZY, reorder=reorder), pattern=feed.pattern)
    windowed = runs.of(replace(stream, limits=Limits(batch_messages=7)))
    topic = feed.create("values")
    chance = random.Random(SEED)  # noqa: S311  # reproducible
    sent = disordered([(chance.choice("abc"), chance.randint(0, 9), chance.randint(0, 10)) for _ in range(60)])
    for part in (sent[:25], sent[25:40], [*sent[40:], LAST]):
        feed.append(topic, [ProducerRecord(key.encode(), msgspec.json.encode(Value(t, v)), 0) for key, t, v in part])
        windowed.run()
    rows = read_table(windowed.folders.table).to_pylist()
    times = [[round(row[name].timestamp()) for name in ("start", "end")] for row in rows]
    found = Counter((*at, tuple(sorted(row["values"]))) for at, row in zip(times, rows, strict=True))
    assert found == expected_of(fold.windows, sent)
    assert {row["_session"] for row in rows} == set("abc")
    report = verify_stream(windowed.stream, windowed.folders, windowed.settings.kafka)
    assert (report.status, report.violations) == (InvariantStatus.PROVEN, ())


@pytest.mark.parametrize("seed", range(4))
def test_sessions_whose_first_message_waits_are_suspended_and_begin_again(
    feed: Feed, runs: LocalRuns, seed: int
) -> None:
    """Undecodable messages suspend the partition, the fold refuses others, and sessions end."""
    stream = a_stream(Picky(), replace(FUZZY, reorder=True, on_violation=Suspend()), pattern=feed.pattern)
    windowed = runs.of(replace(stream, limits=Limits(batch_messages=7)))
    topic = feed.create("values")
    chance = random.Random(seed)  # noqa: S311  # reproducible
    sent = disordered([(chance.choice("abcd"), chance.randint(0, 9), chance.randint(0, 12)) for _ in range(60)])
    values = [(key, msgspec.json.encode(Value(t, v, chance.choice(KINDS)))) for key, t, v in sent]
    for at in chance.sample(range(60), 2):
        values[at] = values[at][0], b"{"
    for part in (values[:25], values[25:40], values[40:]):
        feed.append(topic, [ProducerRecord(key.encode(), value, 0) for key, value in part])
        windowed.run()
    report = verify_stream(windowed.stream, windowed.folders, windowed.settings.kafka)
    assert report.violations == ()
    assert report.status in PROVEN_OR_LOST
    assert report.counts["quarantined"] > 2


KINDS = (*[Kind.UPDATE] * 9, Kind.END)
