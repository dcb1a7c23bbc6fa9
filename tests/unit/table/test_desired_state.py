"""Which commit may change the desired state of a stream: the rule of docs/decisions/0010 as a table, on real tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.model.finding import Finding
from lockstep.table import commit_kinds
from lockstep.table.commit import commit_batch, commit_claim, set_desired_state
from lockstep.table.head import Desired
from tests.support.protocol_run import ProtocolRun, anything, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.head import Head

FINDING = Finding(cause="gap", topic="t", topic_id="id", partition=0, offset=4, until=5, session="s")
NEVER_ENDING, LEFT = Desired.RUNNING, None
"""The desired state in claims of a never-ending run that a person launches, and in claims of any other run."""
UNHALTED = [desired for desired in Desired if desired is not Desired.HALTED]


class Run(ProtocolRun):
    """A run that claims with a desired state."""

    def wanting(self, desired: Desired | None, reason: str = "because") -> Head:
        proposal = commit_claim(self.head.epoch, self.output.table_id, anything, desired=desired, reason=reason)
        self.head = self.output.commit(proposal).head
        return self.head

    def halt(self) -> Head:
        head = self.commit(self.prepared(findings=(FINDING,))).head
        self.forward(head)
        return head

    def resume(self) -> Head:
        self.wanting(LEFT)
        batch = msgspec.structs.replace(self.prepared(rows=0), files=())
        proposal = commit_batch(self.writer, batch, kind=commit_kinds.RESUME, reason="resumed: it was mended (ann)")
        self.head = self.output.commit(proposal).head
        return self.head


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(folders_in(tmp_path))


def in_state(run: Run, desired: Desired) -> Run:
    run.wanting(desired, "as it was")
    return run


def test_a_new_table_is_stopped_until_a_run_claims_it(run: Run) -> None:
    assert (run.head.desired, run.head.reason) == (Desired.STOPPED, "created")


@pytest.mark.parametrize(
    ("claim", "then"), [(NEVER_ENDING, (Desired.RUNNING, "because")), (LEFT, (Desired.BOUNDED, "bounded runs only"))]
)
def test_the_first_run_of_a_stream_says_of_which_kind_it_is(
    run: Run, claim: Desired | None, then: tuple[Desired, str]
) -> None:
    head = run.wanting(claim)
    assert (head.desired, head.reason) == then


@pytest.mark.parametrize("before", UNHALTED)
def test_a_bounded_run_leaves_the_desired_state_as_it_was_with_its_claim_and_its_batches(
    run: Run, before: Desired
) -> None:
    in_state(run, before).wanting(LEFT)
    run.batch()
    head = run.batch().head
    assert (head.desired, head.reason, head.epoch, head.batch) == (before, "as it was", 2, 2)


@pytest.mark.parametrize("before", UNHALTED)
def test_the_claim_of_a_never_ending_run_makes_the_stream_running(run: Run, before: Desired) -> None:
    in_state(run, before).wanting(NEVER_ENDING)
    head = run.batch().head
    assert (head.desired, head.reason) == (Desired.RUNNING, "because")


@pytest.mark.parametrize("before", UNHALTED)
def test_a_resumption_gives_back_the_desired_state_of_before_the_halt(run: Run, before: Desired) -> None:
    in_state(run, before)
    halted = run.halt()
    assert (halted.desired, halted.reason, halted.resumes_as) == (
        Desired.HALTED,
        str(FINDING.without_session()),
        before,
    )
    resumed = run.resume()
    assert (resumed.desired, resumed.findings, resumed.reason) == (before, (), "resumed: it was mended (ann)")


@pytest.mark.parametrize("before", UNHALTED)
def test_a_resumption_that_halts_again_leaves_the_state_to_resume_into(run: Run, before: Desired) -> None:
    in_state(run, before).halt()
    run.wanting(LEFT)
    again = run.halt()
    assert (again.desired, again.resumes_as) == (Desired.HALTED, before)
    assert run.resume().desired is before


@pytest.mark.parametrize("wanted", [Desired.RUNNING, Desired.STOPPED, Desired.HELD])
def test_what_is_wanted_of_a_halted_stream_holds_once_it_is_resumed(run: Run, wanted: Desired) -> None:
    in_state(run, Desired.RUNNING).halt()
    halted = run.wanting(wanted)
    assert (halted.desired, halted.findings, halted.reason) == (
        Desired.HALTED,
        (FINDING,),
        str(FINDING.without_session()),
    )
    assert run.resume().desired is wanted


def test_the_writer_itself_commits_what_an_operator_asks_it_for(run: Run) -> None:
    in_state(run, Desired.RUNNING)
    head = run.output.commit(set_desired_state(run.writer, Desired.HELD, "a new disk (ann)")).head
    assert (head.desired, head.reason) == (Desired.HELD, "a new disk (ann)")
