"""Helpers for tests of `resume_stream`: the halt, the resumption, and the contents of ledger, quarantine and table."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep.integrity.resume_options import IntegrityLost, StreamHalted
from lockstep.operations.resume import resume_stream
from lockstep.table.head import Desired
from lockstep.table.ledger import Accepted, LedgerRow, read_ledger
from tests.support.feed import Feed, folded, snapshot, update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.integrity.resume_options import Acceptance
    from lockstep.model.finding import Finding
    from tests.support.local_runs import LocalRuns

WHY = "the producer lost it"
WHO = "an operator"
TWO = [("s", snapshot(1, a=1)), ("t", snapshot(1, b=1)), ("s", update(2, a=1)), ("t", update(2, b=1))]
"""Two sessions in one partition, offsets 0 to 3."""


def halted(runs: LocalRuns) -> tuple[Finding, ...]:
    """Return the findings that halt the next run; the run after it must be refused with the same findings."""
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    with pytest.raises(StreamHalted) as refused:
        runs.run()
    assert refused.value.findings == lost.value.findings
    return lost.value.findings


def resumed(runs: LocalRuns, *accepted: Acceptance) -> list[LedgerRow]:
    """Resume, and return the resumption's ledger rows, by topic id and partition."""
    head = resume_stream(runs.folders, why=WHY, who=WHO, accepted=accepted)
    assert head.desired is Desired.BOUNDED
    return [row for row in read_ledger(runs.folders.ledger) if row.batch == head.batch]


def noted(rows: Iterable[LedgerRow]) -> list[tuple[str, str, int, int, str | None]]:
    """Return the ledger's notes of accepted findings; each must have the author and the reason."""
    found: list[Accepted] = [note for row in rows for note in row.accepted]
    assert {(note.who, note.why) for note in found} <= {(WHO, WHY)}
    return [(note.kind, note.cause, note.start, note.until, note.session) for note in found]


def kept(runs: LocalRuns) -> dict[tuple[str, int, int], str]:
    rows = DeltaTable(runs.folders.quarantine).to_pyarrow_table().to_pylist()
    return {(row["topic"], row["partition"], row["offset"]): row["cause"] for row in rows}


def send(feed: Feed, topic: str, *messages: tuple[str, bytes]) -> None:
    for key, value in messages:
        feed.send(topic, [value], key=key)


def send_all(feed: Feed, topic: str, messages: Iterable[tuple[str, bytes]]) -> None:
    """Append many messages in order, with one call for each run of the same key."""
    for key, run in groupby(messages, key=itemgetter(0)):
        feed.send(topic, [value for _, value in run], key=key)


def applied(sent: list[tuple[str, bytes]], *offsets: int) -> list[tuple[object, ...]]:
    """Return the rows of a plain fold over the snapshots and updates at these offsets."""
    return folded([(at, *sent[at]) for at in offsets])
