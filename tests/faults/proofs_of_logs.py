"""Faults of Kafka, of producers, and of other writers, and what proves them."""

from __future__ import annotations

from tests.faults.fault import Fault, Tier

T1, T2 = Tier.CORE, Tier.WHOLE
WORKERS = "faults/test_workers.py::"
WRITERS = "faults/test_writers.py::"
LOGS = "faults/test_kafka_logs.py::"
CUT = "faults/test_cut_logs.py::"
OTHERS = "faults/test_other_tools.py::"
CLEAN = "operations/test_clean_state.py::"
DESIRE = "operations/test_desire.py::"
DAMAGE = "faults/test_damage.py::"
BACKLOG = "faults/test_backlog.py::"
ISOLATION = "engine/test_isolation.py::"
SUSPEND = "engine/test_suspend.py::"

LOGS_AND_WRITERS: tuple[Fault, ...] = (
    Fault(
        "F28",
        "retention passes the position while the stream is stopped",
        "by class, with the exact range",
        T1,
        (
            f"{LOGS}test_what_expired_while_the_stream_was_stopped_halts_a_strict_one_with_the_exact_range",
            f"{LOGS}test_what_expired_is_counted_by_an_ordered_one_whose_sessions_wait_for_a_snapshot",
            f"{LOGS}test_what_expired_is_counted_by_best_effort_which_goes_on",
            f"{LOGS}test_a_range_that_expired_is_in_the_ledger_once_although_nothing_came_after_it",
            "engine/test_runs.py::test_one_odd_answer_of_a_broker_loses_nothing",
        ),
    ),
    Fault(
        "F29",
        "the log ends before the position, or was cut and has grown past it again",
        "by class",
        T1,
        (
            f"{LOGS}test_a_log_that_ends_before_the_position_halts_a_strict_stream",
            f"{LOGS}test_an_ordered_stream_passes_over_offsets_it_has_read_and_waits_for_a_snapshot",
            f"{CUT}test_a_log_that_has_grown_past_the_position_again_halts_a_strict_stream_until_that_is_accepted",
            f"{CUT}test_a_class_that_bears_it_says_so_once_and_suspends_where_it_must",
            f"{CUT}test_what_was_read_of_a_log_that_was_cut_meanwhile_is_thrown_away",
            f"{CUT}test_a_broker_that_comes_back_with_all_of_its_log_is_no_alarm",
        ),
    ),
    Fault(
        "F30",
        "a topic is deleted without having been retired",
        "by class",
        T1,
        (
            f"{LOGS}test_a_topic_that_is_deleted_halts_a_strict_stream",
            f"{LOGS}test_a_topic_that_is_deleted_is_missed_and_the_others_go_on",
        ),
    ),
    Fault(
        "F31",
        "a topic is deleted and made again, longer than before",
        "another topic id: by class",
        T1,
        (
            "engine/test_runs.py::test_a_topic_created_again_between_runs_halts_the_stream_by_name",
            f"{SUSPEND}test_a_topic_created_again_is_a_new_topic_to_a_class_that_bears_it",
            f"{LOGS}test_what_was_read_of_a_topic_that_was_replaced_meanwhile_is_thrown_away",
            f"{LOGS}test_a_class_that_bears_it_reads_the_new_topic_from_its_start",
        ),
    ),
    Fault(
        "F32",
        "a new topic begins after offset 0; a topic is hidden by access rules",
        "by class, and listed",
        T1,
        (
            f"{LOGS}test_a_new_topic_whose_beginning_is_gone_is_read_from_its_first_offset_which_the_ledger_names",
            f"{LOGS}test_a_session_whose_beginning_is_gone_is_unknown_to_a_strict_stream",
            "security/test_connections.py::test_a_topic_that_is_hidden_is_no_missing_topic",
        ),
    ),
    Fault(
        "F33",
        "partitions are added in the middle of sessions",
        "by class",
        T1,
        (
            f"{LOGS}test_partitions_that_are_added_halt_a_stream_that_did_not_say_what_they_mean",
            f"{SUSPEND}test_growth_restarts_the_sessions_of_a_topic_where_that_is_declared",
            f"{SUSPEND}test_growth_suspends_a_partition_that_is_silent_until_after_a_restart",
        ),
    ),
    Fault(
        "F34",
        "the producer repeats itself",
        "by class, counted",
        T1,
        (f"{SUSPEND}test_what_cannot_be_applied_goes_to_quarantine_and_the_rest_goes_on",),
    ),
    Fault(
        "F35",
        "two messages come in the wrong order",
        "by class",
        T1,
        (
            f"{SUSPEND}test_what_cannot_be_applied_goes_to_quarantine_and_the_rest_goes_on",
            "checksummed_books/test_faults.py::test_swapped_updates_are_refused_exactly_where_the_exchange_first_disagrees",
        ),
    ),
    Fault(
        "F36",
        "numbers of a session are missing",
        "by class, with the numbers",
        T1,
        (
            f"{SUSPEND}test_what_cannot_be_applied_goes_to_quarantine_and_the_rest_goes_on",
            "checksummed_books/test_faults.py::test_a_lost_update_is_refused_exactly_where_the_exchange_first_disagrees",
        ),
    ),
    Fault(
        "F37",
        "an aborted transaction, markers at the end of a range, a transaction that stays open",
        "explained, no false alarm; the open one is seen as lag, and told when it stays",
        T1,
        (
            "engine/test_transactions.py::test_markers_and_aborted_messages_are_explained_holes_and_a_strict_stream_goes_on",
            f"{BACKLOG}test_what_lies_behind_an_open_transaction_is_lag_and_the_topic_not_drained",
            f"{BACKLOG}test_a_transaction_that_stays_open_is_told_once_and_with_each_batch_until_it_ends",
            "engine/test_stalls.py::test_a_stable_end_that_stands_for_longer_than_the_patience_is_told_with_place_and_time",
        ),
    ),
    Fault(
        "F38",
        "a topic is compacted",
        "classes that need every message refuse to start",
        T1,
        ("engine/test_transactions.py::test_a_compacted_topic_is_refused_at_start",),
    ),
    Fault(
        "F40",
        "an outage, then ten batches at once",
        "bounded batches, bounded memory, all read",
        T2,
        (f"{BACKLOG}test_after_an_outage_a_backlog_is_read_in_batches_that_keep_their_bound",),
    ),
    Fault(
        "F41",
        "two runs of one stream are started together",
        "each row is written by one; nothing of the other is visible",
        T1,
        (
            f"{WRITERS}test_of_two_drivers_started_together_each_row_is_written_by_one",
            f"{WRITERS}test_however_often_two_drivers_race_the_table_stays_whole",
            "table/test_commit.py::test_of_two_racing_claims_one_wins_and_the_other_is_fenced",
            "table/test_raced_commits.py::test_whatever_the_interleaving_every_offset_is_committed_once_and_in_order",
        ),
    ),
    Fault(
        "F42",
        "another stream, or another Kafka, is pointed at the table",
        "refused by the table's identity",
        T1,
        (
            f"{DAMAGE}test_a_stream_that_is_pointed_at_the_table_of_another_is_refused_by_name",
            f"{DAMAGE}test_a_table_of_another_kafka_is_refused_by_its_id",
        ),
    ),
    Fault(
        "F46",
        "types of rows and states change; tables of older releases",
        "goes on as documented, or refused by name",
        T1,
        (
            "state/test_difference.py::test_state_is_refused_by_the_field_that_differs",
            "state/test_migrate.py::test_any_order_of_releases_reads_what_the_last_one_wrote",
            "state/test_fixtures.py::test_a_stream_of_an_older_release_goes_on",
            "engine/test_evolution.py::test_releases_with_other_states_go_on_from_one_another_after_a_kill",
            "engine/test_evolution.py::test_columns_are_added_by_one_commit_and_older_rows_have_null_in_them",
            "engine/test_evolution.py::test_columns_that_go_or_change_are_refused_by_name",
        ),
    ),
    Fault(
        "F56",
        "a transaction is open at plan time, for long",
        "ranges end at the stable end; lag and an alarm tell; not drained",
        T1,
        (
            f"{BACKLOG}test_what_lies_behind_an_open_transaction_is_lag_and_the_topic_not_drained",
            f"{BACKLOG}test_a_transaction_that_stays_open_is_told_once_and_with_each_batch_until_it_ends",
        ),
    ),
    Fault(
        "F57",
        "a topic is made again between audit and reading",
        "the batch is thrown away; by class",
        T1,
        (
            f"{LOGS}test_what_was_read_of_a_topic_that_was_replaced_meanwhile_is_thrown_away",
            f"{LOGS}test_a_class_that_bears_it_reads_the_new_topic_from_its_start",
        ),
    ),
    Fault(
        "F58",
        "a failed job is run again in the same epoch while a worker of the first still writes",
        "no committed file is overwritten",
        T2,
        (
            "cluster/test_faults.py::test_a_task_that_wakes_up_after_its_batch_was_worked_elsewhere_writes_nothing_visible",
            "state/test_durable.py::test_names_never_repeat_and_say_what_the_file_is",
        ),
    ),
    Fault(
        "F60",
        "somebody restores the table, then we compact",
        "stopped on the base, not hidden",
        T1,
        (f"{DAMAGE}test_a_restore_is_not_hidden_by_a_compaction_of_our_own_after_it",),
    ),
    Fault(
        "F64",
        "a message kills its worker each time",
        "found, named, by class; the other partitions go on",
        T1,
        (
            f"{WORKERS}test_a_message_that_kills_its_worker_each_time_halts_a_strict_stream_by_its_offset",
            f"{WORKERS}test_a_message_that_kills_its_worker_each_time_goes_to_quarantine_where_sessions_may_be_suspended",
            f"{ISOLATION}test_wherever_and_however_many_they_are_each_is_named",
            f"{ISOLATION}test_partitions_without_it_commit_while_it_is_looked_for",
        ),
    ),
    Fault(
        "F70",
        "a stop while a successor warms up, or hands over",
        "the stop holds; a start by a person after it wins",
        T1,
        (
            f"{DESIRE}test_a_stop_that_the_writer_commits_while_its_successor_warms_up_is_kept_by_the_successors_claim",
            f"{DESIRE}test_a_stop_in_the_middle_of_a_handover_holds",
            f"{DESIRE}test_a_stop_of_a_stopped_stream_stops_the_run_that_is_on_its_way",
            f"{DESIRE}test_a_stop_that_meets_a_handover_follows_it_to_the_next_writer",
            f"{DESIRE}test_a_start_by_a_person_after_the_stop_wins_over_it_and_over_what_was_on_its_way_before",
        ),
    ),
    Fault(
        "F71",
        "state is cleaned up beside a driver whose clock is off by days, or that slept for days before its commit",
        "what it may commit stays and is committed; what an epoch left that is fenced goes",
        Tier.PURE,
        (
            f"{CLEAN}test_a_driver_that_slept_for_days_between_its_tasks_and_its_commit_commits",
            f"{CLEAN}test_a_driver_that_is_fenced_in_its_sleep_loses_its_files_and_its_successor_none",
            f"{CLEAN}test_what_may_still_be_committed_stays_and_what_cannot_goes_whatever_the_clocks_show",
            f"{CLEAN}test_a_run_that_warms_up_while_its_stream_is_cleaned_up_finds_its_state",
        ),
    ),
    Fault(
        "F75",
        "the root of a stream is copied while it is written, moved, or set back to an older copy",
        "goes on whole, or is refused by name; a run under which it happens ends by name",
        T1,
        (
            f"{DAMAGE}test_a_root_that_was_restored_from_an_older_copy_is_read_up_again_from_kafka_and_says_so",
            f"{DAMAGE}test_a_root_that_is_moved_while_the_stream_is_stopped_goes_on_where_it_is",
            f"{DAMAGE}test_a_copy_of_a_root_that_was_written_meanwhile_goes_on_whole_or_is_refused_by_name",
            f"{OTHERS}test_a_root_that_is_moved_or_set_back_under_a_run_ends_it_and_the_next_goes_on",
        ),
    ),
    Fault(
        "F76",
        "two roots of one stream name read the same topics",
        "both tables are complete; the one behind says that there is another",
        T1,
        (f"{DAMAGE}test_two_roots_of_one_stream_each_hold_all_rows_and_the_one_behind_says_that_there_is_another",),
    ),
)
