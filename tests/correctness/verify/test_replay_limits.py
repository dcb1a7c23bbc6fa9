"""If the rows of a healthy table cannot replay to the state, the report names the reason and no violation."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lockstep import Envelope, Record, Sequence, Strict, Suspend, Transform
from lockstep.declare.replay import ReplayKey
from lockstep.model.position import TopicIdPartition
from lockstep.table.head import FoldCode, Head, Imported, Origin, Promotion, Retention
from lockstep.table.layout import StreamFolders
from lockstep.verify.ledger import make_chains
from lockstep.verify.report import InvariantStatus, ViolationKind, Violations
from lockstep.verify.row_replay import find_limits
from tests.correctness.verify.forging import Forged
from tests.correctness.verify.shelves import Change, Item, ItemRow, Line, Producer, Shelves, shelf_stream
from tests.correctness.verify.test_row_spool import row, spool
from tests.support.offline_proof import prove
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.verify.report import InvariantResult, VerifyReport

SUSPENDING = Strict(evidence=Sequence(), on_violation=Suspend())
ONE = Decimal(1)
TWO = Decimal(2)
FIVE = Decimal(5)
Table = dict[tuple[str, int], Item]


class HandmadeShelves(Transform[Change, Table, ItemRow]):
    """The same table, handwritten: snapshots emit nothing, so the rows do not replay."""

    def envelope(self, message: Change, record: Record) -> Envelope:
        """Return the envelope of `Shelves`."""
        return Shelves().envelope(message, record)

    def on_snapshot(self, message: Change, record: Record, previous: Table | None) -> Table:
        """Return the table of `Shelves`."""
        return Shelves().on_snapshot(message, record, previous)

    def on_update(self, state: Table, message: Change, record: Record) -> Iterable[ItemRow]:
        """Return the rows of `Shelves`."""
        return Shelves().on_update(state, message, record)


class KeptShelves(Shelves):
    """Ends of sessions emit nothing."""

    ends_remove = False


def find_replay(found: VerifyReport) -> InvariantResult:
    (replay,) = (each for each in found.invariants if each.invariant.value == "I9")
    return replay


def send(kind: str, number: int, *lines: Line) -> tuple[str, bytes]:
    return "a", msgspec.json.encode(Change(kind, number, number, list(lines)))


@pytest.mark.parametrize(
    ("fold", "reason"),
    [
        (HandmadeShelves(), "HandmadeShelves declares no key"),
        (KeptShelves(), "KeptShelves.ends_remove is off, so the end of a session emits no removals"),
    ],
)
def test_a_fold_that_does_not_claim_it_is_proven_without_it(fold: Any, reason: str, tmp_path: Path) -> None:
    offline = Offline(shelf_stream(fold, SUSPENDING), tmp_path)
    offline.run({"t": Producer(random.Random(1), Shelves()).send(40)})  # noqa: S311  # reproducible
    found = prove(offline)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    assert (find_replay(found).status, find_replay(found).checked) == (
        InvariantStatus.NOT_CLAIMED,
        f"not replayable: {reason}",
    )


def test_rows_before_todays_code_are_named_and_not_accused(tmp_path: Path) -> None:
    """A handwritten fold becomes a ready fold: keys without a row since then have no row, or a row of the old code."""
    offline = Offline(shelf_stream(HandmadeShelves(), SUSPENDING), tmp_path)
    offline.run({"t": [send("snapshot", 1, Line("p", 1, ONE), Line("q", 2, TWO))]})
    offline = offline.of(shelf_stream(Shelves(), SUSPENDING))
    offline.run({"t": [send("update", 2, Line("p", 1, FIVE))]})
    found = prove(offline, first=1)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    limit = "replayable from batch 2: other code wrote the batches before it; 1 key without a row since then differs"
    assert [scope.replay for scope in found.scopes] == [limit]
    offline.run({"t": [send("snapshot", 3, Line("q", 2, FIVE))]})
    assert [scope.replay for scope in prove(offline, first=1).scopes] == [""]


@pytest.fixture
def retained(tmp_path: Path) -> tuple[Offline, StreamFolders, Forged]:
    """A table whose first batch has no rows left after retention."""
    offline = Offline(shelf_stream(Shelves(), SUSPENDING), tmp_path)
    first = send("snapshot", 1, Line("p", 1, ONE), Line("q", 2, TWO))
    offline.run({"t": [first]}, {"t": [send("update", 2, Line("p", 1, FIVE))]})
    folders = StreamFolders("shelves", tmp_path / "forged")
    forged = Forged.copy(offline.folders.table.parent, folders.table.parent)
    (dropped,) = (file for file in forged.files("table") if forged.rows("table", file)[0]["_cause"] == "snapshot")
    forged.forget("table", dropped)
    forged.state_in_head(retention=msgspec.to_builtins(Retention(hour="2026-01-01T00", batch=1, at=0, cause="test")))
    return offline, folders, forged


def test_rows_that_retention_dropped_are_named_and_not_missed(
    retained: tuple[Offline, StreamFolders, Forged],
) -> None:
    offline, folders, _ = retained
    found = prove(offline, folders)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())
    limit = "replayable from batch 2: retention dropped the rows before it; 1 key without a row since then differs"
    assert [scope.replay for scope in found.scopes] == [limit]


def test_a_row_after_the_limit_is_judged(retained: tuple[Offline, StreamFolders, Forged]) -> None:
    offline, folders, forged = retained
    (file,) = forged.files("table")
    forged.change("table", file, 0, price=6)
    kinds = {each.kind for each in prove(offline, folders, first=2).violations}
    assert kinds == {ViolationKind.REPLAY_DIFFERS}


KEY = ReplayKey(("name",), "price", ("price", "ratio"))
MADE: dict[str, Any] = {"table_id": "1", "digest": "", "at": 0, "cause": ""}


@pytest.mark.parametrize(
    ("head", "absent", "limits"),
    [
        ({}, {}, []),
        ({}, {"other": 3}, []),
        ({}, {"ratio": 3}, [(3, "rows before it have no column ratio")]),
        ({"retention": Retention(hour="", batch=5, at=0, cause="")}, {}, [(5, "retention dropped the rows before it")]),
        ({"code": FoldCode("", 1)}, {}, []),
        ({"code": FoldCode("", 4)}, {}, [(3, "other code wrote the batches before it")]),
        (
            {"origin": Origin(stream="s", batch=9, code="", code_digest="", **MADE)},
            {},
            [(1, "it started with the state of batch 9 of s, whose table has the rows")],
        ),
        (
            {"imported": Imported(stream="s", savepoint="p", cluster_id="", batch=9, **MADE)},
            {},
            [(1, "it started with the state of batch 9 of s, whose table has the rows")],
        ),
        (
            {"promotion": Promotion(shadow="s", to_batch=2, first=6, batch=8)},
            {},
            [(6, "another fold wrote the rows before the promotion")],
        ),
    ],
)
def test_each_reason_for_rows_that_are_not_there_is_known(
    head: dict[str, Any], absent: dict[str, int], limits: list[tuple[int, str]], tmp_path: Path
) -> None:
    chains = make_chains(spool(tmp_path, [[row(1), row(2)]]), Violations())
    found = find_limits(Head(stream="t", cluster_id="c", **head), absent, KEY, chains[TopicIdPartition("id", 0)])
    assert [tuple(each) for each in found] == limits


def test_the_rows_of_a_forgotten_topic_stay_without_a_state(tmp_path: Path) -> None:
    offline = Offline(shelf_stream(Shelves(), SUSPENDING), tmp_path)
    offline.run({"t": [send("snapshot", 1, Line("p", 1, ONE))]})
    folders = StreamFolders("shelves", tmp_path / "forged")
    forged = Forged.copy(offline.folders.table.parent, folders.table.parent)
    (file,) = forged.files("ledger")
    forged.change("ledger", file, 0, lifecycle="forgotten", state_file=None, state_start=None, state_length=None)
    found = prove(offline, folders, first=1)
    assert found.violations == ()
    assert find_replay(found).status is InvariantStatus.NOT_CLAIMED
    limit = "not replayable: the topic was forgotten in batch 1, and its state deleted"
    assert [scope.replay for scope in found.scopes] == [limit]
