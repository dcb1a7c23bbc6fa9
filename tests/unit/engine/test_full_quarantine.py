"""A range ends where its quarantine is full: after a whole message, whatever that did to its session."""

from __future__ import annotations

from lockstep import LogOnly, Strict, Suspend
from lockstep.engine.executor.rejects import KEPT_BYTES_MAX
from lockstep.table.quarantine import VALUE_BYTES_MAX
from lockstep.testing import SentMessage, Split, run
from tests.support.adding_stream import POISON, Snapshot, Update, adding

FILLING = KEPT_BYTES_MAX // VALUE_BYTES_MAX - 1
"""Messages of the largest stored size; one more fills the quarantine."""
STREAM = adding("testing", Strict(evidence=LogOnly(), on_violation=Suspend()))


def large(value: int) -> Update:
    """An update of the largest size that is stored whole."""
    return Update(0, {"x" * (VALUE_BYTES_MAX - 500): value})


def of(session: str, message: Snapshot | Update) -> SentMessage[Snapshot | Update]:
    return SentMessage(value=message, key=session)


def test_a_message_that_fills_the_quarantine_suspends_its_session_all_the_same() -> None:
    messages = [
        of("full", Snapshot(1, {"x": 0})),
        of("next", Snapshot(1, {"x": 0})),
        of("full", Update(2, {"x": POISON})),
        *[of("full", large(number)) for number in range(FILLING)],
        of("next", large(POISON)),
        of("next", Update(0, {"x": 7})),
        of("next", Snapshot(9, {"x": 1})),
        of("next", Update(10, {"x": 1})),
    ]
    result = run(STREAM, *messages, split=Split(None, crashes=False))
    failed = 3 + FILLING
    assert [each.offset for each in result.quarantine] == [*range(2, failed + 2)]
    assert [(row.offset, row.row.value) for row in result.proven] == [(failed + 3, 2)]
