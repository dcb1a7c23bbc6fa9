"""What may happen to Dagster's processes and records, and which tests prove what a stream then does."""

from __future__ import annotations

from tests.faults.fault import Fault, Tier

T1, T2 = Tier.CORE, Tier.WHOLE
COMEBACK, SUPERVISION = "orchestration/test_comeback.py::", "orchestration/test_supervision.py::"
SUPERVISOR = "orchestration/test_supervisor.py::"

DAGSTER: tuple[Fault, ...] = (
    Fault(
        "F48",
        "the code server is killed",
        "the run goes on and hears Terminate; a new code server supervises it",
        T2,
        (f"{COMEBACK}test_a_run_whose_code_server_is_killed_goes_on_and_hears_terminate",),
    ),
    Fault(
        "F49",
        "a run is killed; everything is killed at once; the machine loses its power",
        "dead runs are closed and the stream is back without a person, started once",
        T1,
        (
            f"{COMEBACK}test_a_run_that_is_killed_is_replaced_by_the_daemon_and_shown_as_failed",
            f"{COMEBACK}test_a_run_of_the_daemon_that_is_killed_is_replaced",
            f"{COMEBACK}test_everything_that_is_killed_at_once_is_back_with_the_next_daemon",
            f"{SUPERVISION}test_a_run_that_dagster_shows_as_started_though_it_was_killed_is_failed_and_replaced",
            f"{SUPERVISION}test_of_two_ticks_that_decide_the_same_only_one_asks_for_a_run",
            f"{SUPERVISOR}test_after_a_reboot_an_old_counter_is_looked_at_three_times_whatever_was_known_before",
        ),
    ),
    Fault(
        "F50",
        "a run is terminated in Dagster, wherever it was launched and whatever becomes of it",
        "the stream stays stopped; no process is left",
        T2,
        (
            f"{COMEBACK}test_a_run_of_the_command_line_that_is_terminated_in_dagster_stops_the_stream",
            f"{COMEBACK}test_a_terminate_whose_last_batch_is_abandoned_is_a_stop",
            f"{SUPERVISION}test_a_person_who_terminates_a_run_that_dies_over_it_has_stopped_the_stream",
        ),
    ),
    Fault(
        "F55",
        "a run key that failed is asked for again",
        "each start has a key of its own",
        T1,
        (
            f"{SUPERVISION}test_a_start_whose_run_never_came_is_asked_for_again_under_another_key",
            f"{SUPERVISOR}test_each_start_of_a_stream_that_dies_young_has_a_key_of_its_own_though_epochs_pass",
            "orchestration/test_topics.py::test_a_run_that_did_not_bring_its_topics_is_asked_for_again_later_and_later",
        ),
    ),
)
