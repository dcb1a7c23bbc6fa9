"""A message whose value no state can hold: refused through a real broker, proven, and nothing else is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import NoIntegrity, Once, Ordered, Sequence, SessionStart, Strict, Suspend
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.resume import resume_stream
from lockstep.table.ledger import read_ledger
from lockstep.verify.verify import verify_stream
from tests.support.feed import ProducerRecord
from tests.support.plain_reader import read_table
from tests.support.proven import PROVEN_OR_LOST
from tests.support.unstorable_stream import BEFORE_YEAR_1, LARGE, histories

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

FIRST = SessionStart.FIRST_MESSAGE
CLASSES: dict[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=10),
    "ordered": Ordered(session_start=FIRST),
    "suspending": Strict(evidence=Sequence(), session_start=FIRST, on_violation=Suspend()),
}


def measured(seq: int, **values: object) -> bytes:
    return msgspec.json.encode({"seq": seq, **values})


def sent(key: str) -> list[ProducerRecord]:
    """Return messages of one session; the third and the fifth cannot be stored."""
    values = [
        *(measured(1, value=1), measured(2, value=2), msgspec.json.encode({"seq": 3, "value": "x"})),
        *(measured(4), measured(5, at=BEFORE_YEAR_1), measured(6, value=6)),
    ]
    values[2] = b'{"seq":3,"value":%d}' % LARGE
    return [ProducerRecord(key, value) for value in values]


@pytest.mark.parametrize("name", CLASSES)
def test_the_stream_goes_on_and_the_proof_says_the_same(feed: Feed, runs: LocalRuns, name: str) -> None:
    runs = runs.of(histories(CLASSES[name], feed.pattern))
    topic = feed.create("values")
    feed.append(topic, [*sent("p"), *(ProducerRecord("q", measured(seq)) for seq in (1, 2, 3))])
    assert runs.run() is RunOutcome.ENDED
    kept = {row["offset"]: row["cause"] for row in read_table(runs.folders.quarantine).to_pylist()}
    assert kept[2] == "state not storable"
    assert [row["seq"] for row in read_table(runs.folders.table).to_pylist() if row["_session"] == "q"] == [2, 3]
    assert sum(row.messages for row in read_ledger(runs.folders.ledger)) == len(sent("p")) + 3
    feed.append(topic, [ProducerRecord("p", measured(7)), ProducerRecord("q", measured(4))])
    runs.run()
    found = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert found.violations == ()
    assert found.status in PROVEN_OR_LOST


def test_a_strict_stream_halts_and_is_resumed_as_after_a_fold_that_raised(feed: Feed, runs: LocalRuns) -> None:
    strict = Strict(evidence=Sequence(), session_start=FIRST)
    runs = runs.of(histories(strict, feed.pattern))
    topic = feed.create("values")
    feed.append(topic, sent("p")[:4])
    with pytest.raises(
        IntegrityLost, match=rf"state not storable at {topic}/0 offset 2, session 'p': expected a state"
    ):
        runs.run()
    assert len(read_table(runs.folders.table)) == 1
    resume_stream(runs.folders, why="test", who="test", accepted=[], suggested=True)
    feed.append(topic, [ProducerRecord("q", measured(1)), ProducerRecord("q", measured(2))])
    assert runs.run() is RunOutcome.ENDED
    assert [row["offset"] for row in read_table(runs.folders.quarantine).to_pylist()] == [2]
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations == ()
