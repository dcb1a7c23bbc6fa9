"""Numbers that no column holds: a verdict on their messages under every class, never the end of a task."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lockstep import Checksum, FuzzyWindow, LogOnly, NoIntegrity, Once, Ordered, Repeats, Sequence, Strict
from lockstep.testing import Judgement, run
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import snapshot, update

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

CLASSES: dict[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=10),
    "ordered": Ordered(),
    "window": FuzzyWindow(lateness=timedelta(days=1)),
    "reorder": FuzzyWindow(lateness=timedelta(days=1), reorder=True),
    "sequence": Strict(evidence=Sequence()),
    "repeats": Strict(evidence=Sequence(), repeats=Repeats.DROP),
    "checksum": Strict(evidence=Checksum()),
    "log": Strict(evidence=LogOnly()),
}
HALT = {"sequence", "repeats", "checksum", "log"}


@pytest.mark.parametrize("number", [2**63, 10**30, -(10**30)])
@pytest.mark.parametrize("name", CLASSES)
def test_a_number_beyond_64_bits_is_a_verdict_on_its_message(name: str, number: int) -> None:
    """Two of them in one batch must not end the task with "the fold is not deterministic"."""
    sent = [snapshot(1, a=1), update(number, a=1), update(number, a=2), update(2, b=1)]
    ran = run(adding("testing", CLASSES[name]), *sent, key="s", split=7)
    if name in HALT:
        assert [verdict.judgement for verdict in ran.verdicts] == [Judgement.ACCEPT, Judgement.VIOLATION]
        return
    assert [row.total for row in ran.rows] == ([2] if name in {"none", "once"} else [])
    assert len(ran.quarantine) == (2 if name in {"none", "once"} else 3)


@pytest.mark.parametrize("number", [2**63, 10**30])
@pytest.mark.parametrize("name", CLASSES)
def test_a_session_may_begin_with_it(name: str, number: int) -> None:
    """The session's state is saved too: it must not hold the number."""
    ran = run(adding("testing", CLASSES[name]), snapshot(number, a=1), snapshot(2, b=1), key="s", split=1)
    assert ran.verdicts[0].judgement in {Judgement.ACCEPT, Judgement.QUARANTINE, Judgement.VIOLATION}


@pytest.mark.parametrize("name", ["none", "window"])
def test_the_proof_says_the_same_of_them(feed: Feed, runs: LocalRuns, name: str) -> None:
    runs = runs.of(adding(feed.pattern, CLASSES[name]))
    topic = feed.create("values")
    feed.send(topic, [snapshot(1, a=1), update(2**63, a=1), update(2**63, a=2), update(2, b=1), snapshot(3, a=1)])
    runs.run()
    found = verify_stream(runs.stream, runs.folders, runs.settings.kafka, None)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
