"""The streams that a host starts, by their desired state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.features.host.start_policy import PAUSE_SECONDS_MAX, compute_pause_seconds, decide_start
from lockstep.table.head import Desired, Head


def make_head(desired: Desired, epoch: int = 3, version: int = 7) -> Head:
    return Head(stream="s", cluster_id="c", epoch=epoch, desired=desired, desired_version=version, reason="why")


@given(st.sampled_from(Desired), st.integers(0, 5), st.integers(0, 9))
def test_a_host_starts_what_is_to_run_and_only_people_change_the_desired_state(
    desired: Desired, epoch: int, version: int
) -> None:
    decision = decide_start(make_head(desired, epoch, version), "host default")
    is_new = epoch == 0 or desired is Desired.BOUNDED
    starts = is_new or desired is Desired.RUNNING
    assert (decision.launch is not None) is starts
    assert bool(decision.reason) is not starts
    if decision.launch is not None:
        sets = decision.launch.desires(never_ending=True)
        assert sets is (Desired.RUNNING if is_new else None)
        assert decision.launch.desired_version == (version if is_new else None)
        assert decision.launch.cause == "host default"


def test_a_stream_without_a_table_begins() -> None:
    decision = decide_start(None, "host default")
    assert decision.launch is not None
    assert decision.launch.desired_version == 0


@given(st.integers(1, 10_000))
def test_the_pause_after_failures_grows_up_to_a_limit(failures: int) -> None:
    pause = compute_pause_seconds(failures)
    assert 5.0 <= pause <= PAUSE_SECONDS_MAX
    assert compute_pause_seconds(failures + 1) == min(PAUSE_SECONDS_MAX, 2 * pause)
