"""A fold that reads a changing table: each batch reads one version, also if the batch is repeated."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lockstep import Lookup
from lockstep.declare.lookup import LookupNotBound
from lockstep.engine.executor.lookup_table import LookupUnusable
from lockstep.features.copies.rebuild import rebuild_state
from lockstep.features.history.promote import promote_shadow
from lockstep.features.history.rewind import rewind_stream
from lockstep.features.history.shadow import begin_shadow
from lockstep.operations.inspect.lookups import LookupStatus, read_lookups
from lockstep.operations.inspect.plan import plan_restart
from lockstep.operations.inspect.status import read_status
from lockstep.operations.inspect.trial import try_stream
from lockstep.operations.plan_frame import Refused
from lockstep.operations.stream_handle import StreamHandle
from lockstep.table.ledger import LedgerRow, read_ledger
from lockstep.verify import lookups
from lockstep.verify.ledger import ReadVersion
from lockstep.verify.report import InvariantStatus, VerifyReport, ViolationKind
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import session, snapshot, update
from tests.support.weighing_stream import WEIGHTS, Weighing, vacuum, weighed, weighing, write_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from lockstep.model.lookup_version import LookupVersion
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

SHADOW = "weighing_shadow"
LIGHT = {"a": 1, "b": 1}
HEAVY = {"a": 10}


class Killed(BaseException):
    """Ends the run immediately, like kill -9."""


@dataclass
class Weighed:
    """A stream and its table of weights.

    Attributes:
        sent: Each message with the weights that its batch must have read.
    """

    feed: Feed
    runs: LocalRuns
    topic: str
    sent: list[tuple[bytes, Mapping[str, int]]] = field(default_factory=list)

    @property
    def table(self) -> Path:
        return self.runs.folders.root / "weights"

    def send(self, messages: Sequence[bytes], weights: Mapping[str, int]) -> None:
        self.feed.send(self.topic, messages)
        self.sent += [(each, weights) for each in messages]

    def check_rows(self) -> None:
        assert weighed(self.sent) == self.runs.rows(self.topic)

    def ledger(self) -> list[LedgerRow]:
        return read_ledger(self.runs.folders.ledger)

    def versions(self) -> list[list[tuple[str, int]]]:
        """Return the versions named by each batch with messages."""
        rows = [row for row in self.ledger() if row.messages]
        return [[(each.name, each.version) for each in row.lookups or ()] for row in rows]

    def prove(self) -> VerifyReport:
        return verify_stream(self.runs.stream, self.runs.folders, self.runs.settings.kafka)


@pytest.fixture
def made(feed: Feed, runs: LocalRuns) -> Weighed:
    """A stream with one batch, which has read the first version."""
    found = Weighed(feed, runs.of(weighing(feed.pattern)), feed.create("values"))
    write_weights(found.table, LIGHT)
    found.send(session(3), LIGHT)
    found.runs.run()
    return found


def change(made: Weighed) -> None:
    """Commit a second batch, which reads the second version."""
    write_weights(made.table, HEAVY)
    made.send([update(5, a=2, b=1), update(6, a=1)], HEAVY)
    made.runs.run()


def test_a_table_that_changes_between_two_batches_changes_only_later_rows_and_the_proof_knows_both(
    made: Weighed,
) -> None:
    change(made)
    made.check_rows()
    assert made.versions() == [[("weights", 0)], [("weights", 1)]]
    assert {each.table_id for row in made.ledger() for each in row.lookups or ()} == {
        str(DeltaTable(made.table).metadata().id)
    }
    found = made.prove()
    assert (found.status, found.violations, found.notes) == (InvariantStatus.PROVEN, (), ())


def test_the_proof_folds_with_the_version_of_the_ledger_and_no_other(
    made: Weighed, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(made)
    newest = ReadVersion("weights", 1, str(DeltaTable(made.table).metadata().id))
    monkeypatch.setattr(lookups, "_find_read", lambda *_: newest)  # a proof with this version sees other rows
    found = made.prove()
    assert found.status is InvariantStatus.VIOLATED
    assert {each.offset for each in found.violations if each.kind is ViolationKind.ROW_CHANGED} >= {1, 2, 3}


def fails_first(runner: Runner, change: Callable[[], object], seen: list[BatchPlan]) -> Runner:
    """Change the table during the first job and fail the job, as a dead worker would."""

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        seen.append(plan)
        if len(seen) == 1:
            change()
            raise RuntimeError("a worker died")
        return runner(plan)

    return run


def pinned(plans: Sequence[BatchPlan]) -> list[tuple[int, list[int]]]:
    return [(plan.batch.number, [each.version for each in plan.batch.lookups]) for plan in plans]


def test_a_batch_that_is_planned_again_reads_the_version_of_its_first_plan(made: Weighed) -> None:
    seen: list[BatchPlan] = []
    made.send([update(5, a=3)], LIGHT)
    made.runs.run(around=lambda runner: fails_first(runner, lambda: write_weights(made.table, HEAVY), seen))
    assert pinned(seen) == [(2, [0]), (2, [0])]
    made.check_rows()
    assert made.prove().status is InvariantStatus.PROVEN


def test_a_run_that_is_killed_is_followed_by_one_that_reads_the_newest_version(made: Weighed) -> None:
    def killed(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            runner(plan)
            write_weights(made.table, HEAVY)
            raise Killed

        return run

    made.send([update(5, a=3)], HEAVY)
    with pytest.raises(Killed):
        made.runs.run(around=killed)
    made.runs.run()
    made.check_rows()
    assert made.versions() == [[("weights", 0)], [("weights", 1)]]
    assert made.prove().status is InvariantStatus.PROVEN


def test_a_version_that_is_gone_before_its_batch_is_folded_is_replaced_by_the_newest(made: Weighed) -> None:
    seen: list[tuple[LookupVersion, ...]] = []

    def vacuumed_first(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            seen.append(plan.batch.lookups)
            if len(seen) == 1:
                write_weights(made.table, {"a": 3})
                vacuum(made.table)
            return runner(plan)

        return run

    write_weights(made.table, HEAVY)
    made.send([update(5, a=3)], {"a": 3})
    made.runs.run(around=vacuumed_first)
    assert [each.version for pins in seen for each in pins] == [1, 4]  # a vacuum makes two versions
    made.check_rows()


def test_a_table_that_is_made_anew_in_its_folder_is_another_table(made: Weighed) -> None:
    shutil.rmtree(made.table)
    write_weights(made.table, HEAVY)
    made.send([update(5, a=3)], HEAVY)
    made.runs.run()
    made.check_rows()
    first, second = (row.lookups for row in made.ledger() if row.messages)
    assert first is not None
    assert second is not None
    assert (first[0].version, second[0].version) == (0, 0)
    assert first[0].table_id != second[0].table_id
    found = made.prove()
    assert (found.status, found.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert [note for note in found.notes if "the folder holds another table now" in note] != []


def test_a_table_that_is_restored_from_a_copy_is_read_as_it_is_now(made: Weighed) -> None:
    """The version after the copy is written a second time, with the same id and number."""
    shutil.copytree(made.table, copy := made.table.with_name("copy"))
    change(made)
    shutil.rmtree(made.table)
    shutil.move(copy, made.table)
    write_weights(made.table, {"a": 1000})
    made.send([update(7, a=1)], {"a": 1000})
    made.runs.run()
    made.check_rows()
    assert made.versions() == [[("weights", version)] for version in (0, 1, 1)]


def test_a_table_that_cannot_be_read_any_more_ends_the_run_and_loses_nothing(made: Weighed) -> None:
    shutil.move(made.table, moved := made.table.with_name("moved"))
    made.send([update(5, a=3)], LIGHT)
    with pytest.raises(
        LookupUnusable,
        match=r"lookup weights [^\n]* does not exist .*\n  next: create the table, or correct Lookup\.path",
    ):
        made.runs.run()
    shutil.move(moved, made.table)
    made.runs.run()
    made.check_rows()


def test_a_table_that_vanishes_under_a_run_is_waited_for(made: Weighed) -> None:
    tries: list[int] = []
    moved = made.table.with_name("moved")

    def moved_first(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            tries.append(plan.batch.number)
            if len(tries) == 1:
                shutil.move(made.table, moved)
                raise LookupUnusable("weights", made.table, 0, "unreadable")
            return runner(plan)

        return run

    made.send([update(5, a=3)], LIGHT)
    with pytest.raises(LookupUnusable, match=r"weights"):
        made.runs.run(around=moved_first)
    assert tries == [2]  # the next plans found no table, so they started no job
    shutil.move(moved, made.table)
    made.runs.run()
    made.check_rows()


def test_a_stream_is_refused_whose_table_lacks_a_column_or_has_another_type(made: Weighed) -> None:
    before = made.ledger()
    write_deltalake(
        made.table, pa.table({"name": ["a"], "weight": [1], "factor": ["1"]}), mode="overwrite", schema_mode="overwrite"
    )
    made.send([update(5, a=3)], LIGHT)
    with pytest.raises(LookupUnusable, match="column factor is string, wanted int64"):
        made.runs.run()
    assert made.ledger() == before
    preview = plan_restart(made.runs.stream, made.runs.settings)
    assert "column factor is string, wanted int64" in preview.refused
    assert preview.next_step
    write_deltalake(made.table, pa.table({"name": ["a"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(LookupUnusable, match=r"there is no column factor \(wanted int64\)"):
        made.runs.run()
    write_weights_anew(made, LIGHT)
    assert plan_restart(made.runs.stream, made.runs.settings).lookups == (
        'Lookup(name="weights", path="weights", key="name", row=Weight): version 3',
    )
    made.runs.run()
    made.check_rows()


def write_weights_anew(made: Weighed, weights: Mapping[str, int]) -> None:
    rows = pa.table({"name": list(weights), "factor": list(weights.values())})
    write_deltalake(made.table, rows, mode="overwrite", schema_mode="overwrite")


def test_a_key_that_occurs_twice_ends_the_run_with_its_name(made: Weighed) -> None:
    write_deltalake(made.table, pa.table({"name": ["a", "a"], "factor": [1, 2], "note": ["", ""]}), mode="overwrite")
    made.send([update(5, a=3)], LIGHT)
    with pytest.raises(LookupUnusable, match="1 keys occur more than once, such as name = 'a'"):
        made.runs.run()


def test_a_table_of_the_stream_itself_is_refused_wherever_its_path_is_written(made: Weighed) -> None:
    own = Lookup("own", str(made.runs.folders.table), key="name", row=WEIGHTS.row)
    with pytest.raises(LookupUnusable, match="is a table of the stream itself"):
        made.runs.of(replace(made.runs.stream, lookups=(own,))).run()


def test_batches_of_a_version_that_was_vacuumed_are_not_proven_and_later_ones_are(made: Weighed) -> None:
    change(made)
    vacuum(made.table)
    found = made.prove()
    assert (found.status, found.violations) == (InvariantStatus.NOT_PROVEN, ())
    (note,) = found.notes
    assert f"{made.topic}/0: batch 1 is not reproducible: version 0 of lookup weights (weights) cannot" in note
    (scope,) = found.scopes
    assert scope.proven_from == 4
    assert "not reproducible" in scope.note


def test_nothing_is_proven_and_nothing_violated_where_every_version_is_gone(made: Weighed) -> None:
    write_weights(made.table, HEAVY)
    vacuum(made.table)
    found = made.prove()
    assert (found.status, found.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert [scope.proven_from for scope in found.scopes] == [None]


def test_a_partition_that_read_nothing_of_a_version_that_is_gone_is_proven(made: Weighed) -> None:
    busy = made.feed.create("busy")
    made.feed.send(busy, session(1))
    write_weights(made.table, HEAVY)
    (gone,) = DeltaTable(made.table).file_uris()
    made.runs.run()  # its ledger has a row of the quiet partition, too: a run starts with all positions
    write_weights(made.table, LIGHT)
    Path(gone).unlink()
    made.feed.send(busy, [update(3, a=1)])
    made.runs.run()
    quiet = [row for row in made.ledger() if row.topic == made.topic]
    assert [(row.messages, [each.version for each in row.lookups or ()]) for row in quiet] == [
        (4, [0]),
        (0, [1]),
        (0, [2]),
    ]
    found = made.prove()
    assert (found.status, found.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert {scope.topic: scope.proven_from for scope in found.scopes} == {made.topic: 0, busy: 2}
    (note,) = found.notes
    assert note.startswith(f"{busy}/0: batch 2 is not reproducible: version 1 of lookup weights")


def test_a_first_batch_without_messages_names_no_version_and_takes_no_proof_away(feed: Feed, runs: LocalRuns) -> None:
    made = Weighed(feed, runs.of(weighing(feed.pattern)), feed.create("values"))
    write_weights(made.table, LIGHT)
    made.runs.run()
    made.send(session(2), LIGHT)
    made.runs.run()
    assert [(row.messages, row.lookups is None) for row in made.ledger()] == [(0, True), (3, False)]
    assert made.prove().status is InvariantStatus.PROVEN


def test_a_rewound_stream_reads_its_messages_again_with_the_version_of_then(made: Weighed) -> None:
    change(made)
    write_weights(made.table, {"a": 100, "b": 3})
    rewind_stream(made.runs.handle, "1", why="test", who="test")
    made.sent[4:] = [(value, {"a": 100, "b": 3}) for value, _ in made.sent[4:]]
    made.runs.run()
    made.check_rows()
    assert made.versions()[-1] == [("weights", 2)]
    assert made.prove().status is InvariantStatus.PROVEN


def test_a_shadow_reads_the_versions_of_its_own_batches_and_its_promotion_is_proven_with_them(made: Weighed) -> None:
    change(made)
    write_weights(made.table, LIGHT)
    begin_shadow(made.runs.handle, SHADOW, "1", code="", who="test", why="test")
    shadow = made.runs.of(replace(made.runs.stream, name=SHADOW))
    shadow.run()
    own = verify_stream(shadow.stream, shadow.folders, shadow.settings.kafka)
    assert (own.status, own.violations) == (InvariantStatus.PROVEN, ())
    assert [each.version for row in read_ledger(shadow.folders.ledger) for each in row.lookups or ()] == [2]
    promote_shadow(made.runs.handle, SHADOW, who="test", why="test")
    made.sent = [(value, LIGHT) for value, _ in made.sent]
    made.send([update(7, a=1)], LIGHT)
    made.runs.run()
    made.check_rows()
    found = made.prove()
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())


def test_a_stream_that_gets_a_lookup_later_keeps_its_ledger_and_says_which_batches_named_none(
    feed: Feed, runs: LocalRuns
) -> None:
    stream = replace(adding(feed.pattern), name="weighing")
    made = Weighed(feed, runs.of(stream), feed.create("values"))
    made.send(session(3), LIGHT)
    made.runs.run()
    made = Weighed(feed, runs.of(weighing(feed.pattern)), made.topic, made.sent)
    write_weights(made.table, LIGHT)
    change(made)
    made.check_rows()
    assert made.versions() == [[], [("weights", 1)]]
    assert next(row.lookups for row in made.ledger()) is None
    found = made.prove()
    assert (found.status, found.violations) == (InvariantStatus.NOT_PROVEN, ())
    assert "batch 1 names no version of lookup weights" in found.notes[0]


def test_a_lost_state_is_rebuilt_with_the_versions_of_its_batches(made: Weighed) -> None:
    change(made)
    write_weights(made.table, {"a": 1000})
    shutil.rmtree(made.runs.folders.state)
    shutil.rmtree(made.runs.root / "local")
    rebuild_state(made.runs.handle)
    made.send([update(7, a=1)], {"a": 1000})
    made.runs.run()
    made.check_rows()
    assert made.prove().status is InvariantStatus.PROVEN


def test_a_lost_state_is_not_rebuilt_of_batches_from_before_the_lookup(feed: Feed, runs: LocalRuns) -> None:
    first = runs.of(replace(adding(feed.pattern), name="weighing"))
    made = Weighed(feed, runs.of(weighing(feed.pattern)), feed.create("values"))
    made.send(session(3), LIGHT)
    first.run()
    write_weights(made.table, LIGHT)
    shutil.rmtree(made.runs.folders.state)
    with pytest.raises(Refused, match=r"batch 1 of .* cannot be folded again: lookup weights was read"):
        rebuild_state(made.runs.handle)


def test_a_lost_state_is_not_rebuilt_with_a_version_that_is_gone(made: Weighed) -> None:
    change(made)
    write_weights(made.table, LIGHT)
    made.send([update(7, a=1)], LIGHT)
    made.runs.run()  # this process has loaded two later versions, and keeps no more
    vacuum(made.table)
    shutil.rmtree(made.runs.folders.state)
    with pytest.raises(Refused, match=r"batch 1 of .* cannot be folded again: lookup weights"):
        rebuild_state(made.runs.handle)


def test_a_trial_reads_the_newest_version_below_the_real_table_root(feed: Feed, runs: LocalRuns) -> None:
    made = Weighed(feed, runs.of(weighing(feed.pattern)), feed.create("values"))
    made.send([snapshot(1, a=0), update(2, a=3)], LIGHT)
    write_weights(made.table, HEAVY)
    tried = try_stream(made.runs.stream, made.runs.settings, messages_max=100)
    assert tried.sample == ({"name": "a", "value": 30, "total": 30},)


class PlacedByWeight(Weighing):
    """Reads a lookup in `envelope`, which transforms must not do."""

    def envelope(self, message: Any, record: Any) -> Any:
        """Read a lookup, then return the message's envelope."""
        assert WEIGHTS.get("a") is not None
        return super().envelope(message, record)


def test_an_envelope_that_reads_a_lookup_ends_the_run_and_is_no_verdict_on_the_message(made: Weighed) -> None:
    made.send([update(5, a=3)], LIGHT)
    with pytest.raises(LookupNotBound, match="envelope, watermark and deadline depend on message and state alone"):
        made.runs.of(replace(made.runs.stream, transform=PlacedByWeight())).run()
    made.runs.run()
    made.check_rows()


def test_the_status_shows_the_version_that_was_read_and_the_newest_one(made: Weighed) -> None:
    write_weights(made.table, HEAVY)
    declared = StreamHandle(made.runs.stream, made.runs.settings)
    seen = LookupStatus(name="weights", table=str(made.table), read_version=0, newest_version=1)
    assert read_status(declared).lookups == (seen,)
    shutil.rmtree(made.table)
    write_weights(made.table, LIGHT)  # another table: version 0 of it was not read
    assert read_lookups(declared) == (msgspec.structs.replace(seen, read_version=None, newest_version=0),)
    shutil.rmtree(made.table)
    (gone,) = read_lookups(declared)
    assert (gone.read_version, gone.newest_version) == (0, None)
    assert gone.problem.startswith(f"lookup weights ({made.table}): ")
