"""The rows of ready folds replay to the states: no false alarm for generated feeds, and each seeded fault is found.

Tasks, commits and state files of the engine and the whole proof are real; only the broker is a list of messages.
"""

from __future__ import annotations

import dataclasses
import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from deltalake import DeltaTable

from lockstep import FuzzyWindow, NoIntegrity, Once, Ordered, Sequence, SessionStart, Strict, Suspend
from lockstep.declare.rules import Rule
from lockstep.integrity.resume_options import StreamHalted
from lockstep.rules import InRange, NotNull, OnViolation
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import InvariantStatus, ViolationKind
from tests.correctness.verify.clean_meters import may_leave_out
from tests.correctness.verify.forging import Forged
from tests.correctness.verify.shelves import IDLE, GrowingShelves, Producer, Shelves, Stocks, shelf_stream
from tests.support.offline_proof import prove
from tests.support.offline_stream import Offline
from tests.support.proven import PROVEN_OR_LOST

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.integrity.base import IntegrityClass

FIRST_MESSAGE = SessionStart.FIRST_MESSAGE
LATENESS = timedelta(seconds=5)
CLASSES: dict[str, IntegrityClass] = {
    "strict, suspending": Strict(evidence=Sequence(), on_violation=Suspend()),
    "strict, first message": Strict(evidence=Sequence(), on_violation=Suspend(), session_start=FIRST_MESSAGE),
    "ordered": Ordered(),
    "ordered, first message": Ordered(session_start=FIRST_MESSAGE),
    "once": Once(keep_ids=20),
    "none": NoIntegrity(),
    "window": FuzzyWindow(lateness=LATENESS),
    "reordered": FuzzyWindow(lateness=LATENESS, reorder=True),
    "reordered, first message": FuzzyWindow(lateness=LATENESS, reorder=True, session_start=FIRST_MESSAGE),
}
FOLDS: tuple[Shelves | Stocks, ...] = (Shelves(), GrowingShelves(), Stocks())
EXAMPLES = 270
USUAL = len(CLASSES) * len(FOLDS)


def make_table(seed: int, root: Path, rules: tuple[Rule, ...] = ()) -> Offline:
    """Make a table from a seed: fold, class, faults and batches."""
    rng = random.Random(seed)  # noqa: S311  # reproducible
    classes = [each for each in CLASSES.values() if not rules or may_leave_out(each)]
    integrity = classes[seed % len(classes)]
    fold = FOLDS[seed // len(CLASSES) % len(FOLDS)]
    event_time = IDLE if rng.random() < 0.5 else None
    stream = dataclasses.replace(shelf_stream(fold, integrity, event_time), rules=rules)
    offline = Offline(stream, root)
    producer = Producer(rng, fold, parts=isinstance(fold, Shelves), faults=rng.choice((0.0, 0.1)))
    for _ in range(rng.randrange(1, 3)):
        batches = [{"t": producer.send(rng.choice((1, 3, 8, 30)))} for _ in range(rng.randrange(1, 5))]
        with suppress(StreamHalted):
            offline.run(*batches)
    return offline


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < USUAL else pytest.mark.slow) for seed in range(EXAMPLES)]
)
def test_the_rows_of_a_ready_fold_are_proven_to_replay(seed: int, tmp_path: Path) -> None:
    found = prove(make_table(seed, tmp_path))
    assert found.violations == ()
    assert found.status in PROVEN_OR_LOST, found.notes
    assert [scope.replay for scope in found.scopes] == [""]
    replay = found.invariants[-1]
    assert (replay.invariant.value, replay.status) == ("I9", InvariantStatus.PROVEN)


RULES = (
    InRange("price", at_most=2, on_violation=OnViolation.QUARANTINE),
    NotNull("price", on_violation=OnViolation.QUARANTINE),
)
RULED = 90
USUAL_RULED = 9


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < USUAL_RULED else pytest.mark.slow) for seed in range(RULED)]
)
def test_rules_judge_the_rows_of_snapshots_and_pass_over_removals(seed: int, tmp_path: Path) -> None:
    offline = make_table(seed, tmp_path, RULES)
    found = prove(offline)
    assert found.violations == ()
    assert found.status in PROVEN_OR_LOST, found.notes
    assert [scope.replay for scope in found.scopes] == [""]
    rows = DeltaTable(offline.folders.table).to_pyarrow_table().select(["price", "_cause"]).to_pylist()
    assert all(row["price"] is None or row["price"] <= 2 for row in rows)
    causes = set(DeltaTable(offline.folders.quarantine).to_pyarrow_table()["cause"].to_pylist())
    assert "price_not_null" not in causes


def read_newest(forged: Forged) -> dict[tuple[object, ...], Located]:
    """Return the newest row of each key, with its file and place in it."""
    rows = [Located(*each) for each in forged.all_rows("table")]
    rows.sort(key=lambda each: (each.row["_emit_offset"], each.row["_row"]))
    return {(each.row["_session"], each.row["name"], each.row.get("place")): each for each in rows}


class Located(NamedTuple):
    """A row of a table.

    Attributes:
        file: Its data file.
        at: Its place in the file.
        row: Its values.
    """

    file: str
    at: int
    row: dict[str, Any]

    @property
    def is_removal(self) -> bool:
        """Whether the row removes its key."""
        return self.row["price"] is None


def drop(forged: Forged, located: Located) -> None:
    rows = forged.rows("table", located.file)
    forged.rewrite("table", located.file, rows[: located.at] + rows[located.at + 1 :])


def drop_removal(forged: Forged, located: Located) -> None:
    """Drop the newest row of a removed key."""
    drop(forged, located)


def drop_value(forged: Forged, located: Located) -> None:
    """Drop the newest row of a key, like a snapshot that emitted all rows but this."""
    drop(forged, located)


def change_value(forged: Forged, located: Located) -> None:
    """Change the value in the newest row of a key."""
    other = type(located.row["price"])(located.row["price"] + 1)
    forged.change("table", located.file, located.at, price=other)


def add_key(forged: Forged, located: Located) -> None:
    """Rename a key to a key that no message has ever set."""
    forged.change("table", located.file, located.at, name="never sent")


def revive_key(forged: Forged, located: Located) -> None:
    """Set a value in the newest row of a removed key."""
    forged.change("table", located.file, located.at, price=1, ratio=0.5)


FORGERIES = (drop_removal, drop_value, change_value, add_key, revive_key)
OF_REMOVALS = (drop_removal, revive_key)
FORGED = 200
USUAL_FORGED = 30
GOOD_SEEDS = (1, 3, 10, 18, 20, 25)
"""Two tables of each fold, with removals and ends."""


@pytest.fixture(scope="module")
def good_tables(tmp_path_factory: pytest.TempPathFactory) -> list[Offline]:
    return [make_table(seed, tmp_path_factory.mktemp(f"good{seed}")) for seed in GOOD_SEEDS]


@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=() if n < USUAL_FORGED else pytest.mark.slow) for n in range(FORGED)]
)
def test_a_row_that_does_not_replay_is_found_and_named(
    number: int, good_tables: list[Offline], tmp_path: Path, *, has_log: bool
) -> None:
    """With the log, and without any of its messages: then the newest state alone determines the rows."""
    rng = random.Random(number)  # noqa: S311  # reproducible
    forge = FORGERIES[number % len(FORGERIES)]
    offline = good_tables[number // len(FORGERIES) % len(good_tables)]
    folders = StreamFolders("shelves", tmp_path)
    forged = Forged.copy(offline.folders.table.parent, folders.table.parent)
    newest = read_newest(forged)
    place = rng.choice([key for key, each in newest.items() if each.is_removal is (forge in OF_REMOVALS)])
    forge(forged, newest[place])
    found = prove(offline, folders, first=0 if has_log else len(offline.log.topics["t"]))
    named = [each for each in found.violations if each.kind is ViolationKind.REPLAY_DIFFERS]
    assert found.status is InvariantStatus.VIOLATED
    assert len(named) == (2 if forge is add_key else 1), found.violations
    assert all(f"session {place[0]!r} key " in each.expected for each in named)
    assert all(f"after batch {found.batch}" in each.expected for each in named)


@pytest.mark.parametrize("number", range(6))
def test_a_wrong_cause_is_found_and_named(number: int, good_tables: list[Offline], tmp_path: Path) -> None:
    rng = random.Random(number)  # noqa: S311  # reproducible
    offline = good_tables[number]
    folders = StreamFolders("shelves", tmp_path)
    forged = Forged.copy(offline.folders.table.parent, folders.table.parent)
    file, at, row = rng.choice(forged.all_rows("table"))
    other = rng.choice([cause for cause in ("update", "snapshot", "timer", "end", "late") if cause != row["_cause"]])
    forged.change("table", file, at, _cause=other)
    (violation,) = prove(offline, folders).violations
    assert (violation.kind, violation.offset) == (ViolationKind.ROW_CHANGED, row["_emit_offset"])
    assert (violation.expected, violation.found) == (f"row {row['_row']}: _cause = {row['_cause']!r}", repr(other))
