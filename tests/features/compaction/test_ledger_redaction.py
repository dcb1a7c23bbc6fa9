"""An erased session is removed from any ledger; all other values stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.features.compaction import ledger_files
from lockstep.features.compaction.ledger_files import LedgerBin, compact_ledger
from lockstep.features.erase.commit import ERASED_MARK
from lockstep.features.erase.ledger_redaction import count_named, redact_ledger
from lockstep.model.position import SuspendedSession
from lockstep.model.state_loss import StateLoss
from lockstep.table import ledger
from lockstep.table.commit import OutputLog
from lockstep.table.head import Erasure
from lockstep.table.ledger import Accepted, ErasedRows, LedgerRow
from lockstep.table.quarantine import ERASED
from lockstep.table.session_digest import compute_session_digest
from lockstep.table.side_files import LedgerFile
from tests.features.quality.stream_tables import CLEAN, Batch, clean_batches, write
from tests.support.examples import scale_examples
from tests.support.traces import find_traces

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

    from lockstep.table.head import Head
    from lockstep.table.layout import StreamFolders

NAME = "maria@example.org"
OTHERS = ["maria@example.or", "bob", f"{ERASED_MARK}0123"]
SESSIONS = st.sampled_from([NAME, *OTHERS])


def accept(session: str | None) -> Accepted:
    """Return a decision of an operator; its reason names the session."""
    kind = "accept-loss" if session is None else "skip-session"
    return Accepted(kind=kind, cause="gap", start=1, until=2, session=session, who="ann", why=f"why {session}")


DECISIONS = st.fixed_dictionaries(
    {
        "accepted": st.lists(st.one_of(st.none(), SESSIONS).map(accept), max_size=3),
        "suspended_sessions": st.lists(SESSIONS.map(lambda name: SuspendedSession(name, 7)), max_size=2),
        "uncounted_skips": st.lists(SESSIONS, max_size=2),
    }
)


def write_decided(root: Path, drawn: list[dict[str, list[object]]]) -> StreamFolders:
    """Write tables whose ledger rows have decisions; the last batch is the erasure."""
    count = len(drawn) // len(CLEAN)
    batches: list[Batch] = clean_batches(count + 1)
    for at, decided in enumerate(drawn):
        reason = next((each.why for each in decided["accepted"] if isinstance(each, Accepted)), None)
        batches[at // len(CLEAN)][CLEAN[at % len(CLEAN)]].change_ledger(**decided, restart_cause=reason)
    return write(root, batches)


def has_name(row: LedgerRow) -> bool:
    decided = {each.session for each in row.accepted}
    return NAME in decided | {each.session for each in row.suspended_sessions} | {*row.uncounted_skips}


def hide(row: LedgerRow, mark: str, decided: set[int]) -> LedgerRow:
    """Return the row expected after the erasure."""
    accepted = [
        msgspec.structs.replace(each, session=None, why=ERASED) if each.session == NAME else each
        for each in row.accepted
    ]
    skipped = [SuspendedSession(mark if each.session == NAME else each.session, 7) for each in row.suspended_sessions]
    uncounted = [mark if each == NAME else each for each in row.uncounted_skips]
    reason = ERASED if row.batch in decided else row.restart_cause
    return msgspec.structs.replace(
        row, accepted=accepted, suspended_sessions=skipped, uncounted_skips=uncounted, restart_cause=reason
    )


@settings(max_examples=scale_examples(40), deadline=None)
@given(
    st.lists(DECISIONS, min_size=len(CLEAN), max_size=2 * len(CLEAN)).filter(lambda each: len(each) % len(CLEAN) == 0)
)
def test_the_session_goes_and_all_other_values_stay(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[dict[str, list[object]]]
) -> None:
    folders = write_decided(tmp_path_factory.mktemp("ledger"), drawn)
    head = OutputLog(folders.table).base().head
    digest = compute_session_digest(head.table_id, NAME)
    erasure = Erasure(digest=digest, topic="", batch=head.batch, version=1, at=0.0, cause="")
    before = ledger.read_ledger(folders.ledger)
    assert sum(count_named(folders, head.table_id, digest, "").values()) == sum(map(has_name, before))
    decided = {row.batch for row in before if any(each.session == NAME for each in row.accepted)}
    redact_ledger(folders, head, erasure)
    assert ledger.read_ledger(folders.ledger) == [hide(row, f"{ERASED_MARK}{digest}", decided) for row in before]
    assert find_traces(folders.ledger, NAME) == []
    assert redact_ledger(folders, head, erasure) == 0


def test_a_compaction_that_an_erasure_overtakes_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = clean_batches(3)
    batches[0][CLEAN[0]].change_ledger(accepted=[accept(NAME)])
    folders = write(tmp_path, batches)
    head = OutputLog(folders.table).base().head
    digest = compute_session_digest(head.table_id, NAME)
    erasure = Erasure(digest=digest, topic="", batch=3, version=1, at=0.0, cause="")

    def plan_before_erasure(files: Iterable[LedgerFile], _: Head) -> tuple[LedgerBin, ...]:
        planned = tuple(file for file in files if file.name.last < erasure.batch)
        assert redact_ledger(folders, head, erasure) == 1
        return (LedgerBin(planned[0].name.hour, planned),)

    monkeypatch.setattr(ledger_files, "plan_ledger", plan_before_erasure)
    assert compact_ledger(folders, head).hours == 0
    assert find_traces(folders.ledger, NAME) == []
    assert len(ledger.read_ledger(folders.ledger)) == 3 * len(CLEAN)


def test_errors_of_losses_go_where_the_session_was_and_of_other_topics_nothing(tmp_path: Path) -> None:
    batches = clean_batches(3)
    (first, *_, last) = CLEAN
    loss = StateLoss(cause="gap", offset=1, sessions=1, messages=None, detail=f"KeyError: {NAME!r}")
    digest = "d" * 32
    for place in (first, last):
        batches[0][place].change_ledger(losses=[loss], accepted=[accept("bob")])
    rows = ErasedRows(digest=digest, start=1, batch=1, rows=0, messages=0)
    batches[2][first].change_ledger(erased=[rows])
    folders = write(tmp_path, batches)
    erasure = Erasure(digest=digest, topic=first.topic, batch=3, version=1, at=0.0, cause="")
    assert redact_ledger(folders, OutputLog(folders.table).base().head, erasure) == 1
    shown = {
        (row.topic, row.partition): row.losses[0].detail for row in ledger.read_ledger(folders.ledger) if row.losses
    }
    assert shown == {(first.topic, first.partition): ERASED, (last.topic, last.partition): loss.detail}
