"""Faults of processes, disks and tables, and their proofs."""

from __future__ import annotations

from tests.faults.matrix.fault import Fault, Tier

T0 = Tier.PURE
T1 = Tier.CORE
T2 = Tier.WHOLE
KILLS = "faults/matrix/test_driver_kills.py::"
WORKERS = "faults/matrix/test_workers.py::"
WRITERS = "faults/matrix/test_writers.py::"
COMPACTION = "faults/matrix/test_compaction.py::"
HOUSEKEEPING = "features/retention/test_housekeeping.py::"
OTHERS = "faults/matrix/test_other_tools.py::"
REBUILD = "features/copies/test_rebuild.py::"
DAMAGE = "faults/matrix/test_damage.py::"
REWIND = "features/history/test_rewind_end_to_end.py::"
DISKS = "faults/matrix/test_disks.py::"
BROKERS = "integration/engine/test_brokers.py::"
NETWORK = "integration/engine/test_network.py::"
ISOLATION = "integration/engine/test_poison_messages.py::"
CLOCKS = "faults/matrix/test_clocks.py::"
HOLES = "integration/engine/test_missing_offsets.py::"
CORRUPT = "integration/engine/test_corrupt_batches.py::"
WATCHED = "faults/crash/test_kills.py::test_no_kill_of_the_driver_loses_doubles_or_reorders_a_row"

MACHINES: tuple[Fault, ...] = (
    Fault(
        "F01",
        "kill -9 of the driver after planning, before the job",
        "the batch is planned again",
        T2,
        (f"{KILLS}test_after_planning_before_the_job", WATCHED),
    ),
    Fault(
        "F02",
        "kill -9 of the driver while tasks read and fold",
        "the messages are read again; the same rows",
        T2,
        (f"{KILLS}test_while_tasks_read_and_fold", WATCHED),
    ),
    Fault(
        "F03",
        "kill -9 of the driver after files are written, before the commit",
        "files without a reference, no other trace",
        T2,
        (f"{KILLS}test_after_the_files_are_written_before_the_commit", WATCHED),
    ),
    Fault(
        "F04",
        "kill -9 of the driver inside the commit",
        "the batch is not visible",
        T2,
        (f"{KILLS}test_inside_the_commit", WATCHED),
    ),
    Fault(
        "F05",
        "kill -9 of the driver after the commit, before the side tables",
        "the side tables are brought forward",
        T2,
        (
            f"{KILLS}test_after_the_commit_before_the_side_tables",
            WATCHED,
            "unit/table/test_side_tables.py::test_a_run_that_died_between_the_two_commits_is_completed_by_the_next",
        ),
    ),
    Fault(
        "F06",
        "kill -9 of the driver between two side tables",
        "the side tables are brought forward",
        T2,
        (f"{KILLS}test_between_two_side_tables",),
    ),
    Fault(
        "F07",
        "kill -9 of the driver during a log checkpoint, or while a state base is written",
        "readers are not affected",
        T2,
        (
            f"{KILLS}test_during_a_log_checkpoint",
            f"{KILLS}test_while_a_state_base_is_written",
            "unit/state/test_kills.py::test_no_kill_leads_to_a_wrong_read",
        ),
    ),
    Fault(
        "F08",
        "a Python worker is killed in a batch; all Python processes of an executor are stopped",
        "the task is tried again, with the same rows; an executor that is late twice is replaced",
        T1,
        (
            f"{WORKERS}test_a_worker_that_dies_in_the_middle_is_replaced_within_the_batch",
            "integration/cluster/test_faults.py::test_killed_and_stopped_machines_lose_nothing_and_double_nothing",
            (
                "integration/cluster/test_faults.py::"
                "test_an_executor_whose_python_is_stopped_holds_up_its_own_partitions_only"
            ),
        ),
    ),
    Fault(
        "F09",
        "workers are killed until a task has no attempts left",
        "the batch is planned again; if it fails again, the run ends and blames no message",
        T1,
        (
            f"{WORKERS}test_a_batch_whose_task_ran_out_of_attempts_is_planned_again",
            f"{ISOLATION}test_what_fails_without_the_message_too_is_raised_and_blames_none",
            "unit/orchestration/test_supervisor_sensor.py::test_a_stream_that_is_to_be_running_gets_a_never_ending_run_that_can_be_launched",
        ),
    ),
    Fault(
        "F10",
        "the driver is stopped (SIGSTOP), a replacement writes, the driver wakes up",
        "the old writer is fenced",
        T1,
        (
            f"{WRITERS}test_a_driver_that_wakes_up_after_its_replacement_took_over_is_fenced",
            "integration/engine/test_runs.py::test_a_run_that_answers_nobody_is_fenced_and_what_it_wrote_stays_invisible",
        ),
    ),
    Fault(
        "F11",
        "out of memory: a worker, then the driver",
        "as F08 and F02; an error of memory or of file handles ends ranges earlier and blames no message",
        T2,
        (
            f"{WORKERS}test_a_worker_that_dies_in_the_middle_is_replaced_within_the_batch",
            f"{KILLS}test_while_tasks_read_and_fold",
            "unit/engine/test_limits.py::test_a_batch_whose_messages_pass_one_by_one_passes_as_a_whole",
            "unit/engine/test_limits.py::test_a_message_that_reaches_it_alone_is_named_by_an_error_of_the_run",
            "unit/engine/test_limits.py::test_handles_that_a_transform_keeps_end_ranges_earlier",
            "unit/engine/test_limits.py::test_memory_that_a_transform_takes_ends_ranges_earlier",
            "unit/engine/test_retries.py::test_a_limit_of_all_tasks_together_blames_no_message_and_all_are_read",
        ),
    ),
    Fault(
        "F12",
        "SIGTERM in the middle of a batch",
        "a clean end within the stop timeout, no process left",
        T1,
        (
            "integration/orchestration/test_runs.py::test_a_second_run_of_another_home_takes_over_and_a_signal_ends_it_without_a_trace",
            "integration/orchestration/test_main_thread.py::test_work_that_does_not_listen_is_abandoned_after_its_patience",
            "integration/orchestration/test_main_thread.py::test_a_spark_job_that_hangs_in_a_worker_is_abandoned_and_leaves_no_process",
        ),
    ),
    Fault(
        "F13",
        "no room for local state",
        "private copies serve; without room for them the run ends by name",
        T2,
        (
            f"{DISKS}test_without_room_for_hot_state_the_durable_one_serves",
            "unit/state/test_local_store.py::test_what_cannot_be_kept_hot_is_still_durable",
            "unit/state/test_local_store.py::test_a_local_folder_that_cannot_be_written_is_named",
        ),
    ),
    Fault(
        "F14",
        "no room for the table",
        "no commit, readers are not affected",
        T1,
        (f"{DISKS}test_no_room_for_the_table_ends_the_run_and_room_lets_the_next_go_on",),
    ),
    Fault(
        "F15",
        "EIO or ENOSPC at a write, rename, link or fsync",
        "the run ends with an error or continues; nothing is lost",
        T2,
        (f"{DISKS}test_a_call_that_fails_loses_nothing",),
    ),
    Fault(
        "F16",
        "a local state file is flipped, cut, swapped, or from another boot",
        "detected and rebuilt",
        T0,
        (
            "unit/state/test_local_store.py::test_a_flipped_bit_is_harmless_or_found_within_three_attempts",
            "unit/state/test_local_store.py::test_a_damaged_copy_is_rebuilt_without_a_word",
            "unit/state/test_local_store.py::test_a_copy_of_a_batch_that_was_not_committed_is_rebuilt",
            "unit/state/test_local_store.py::test_a_copy_of_another_boot_is_not_used_and_is_removed",
            "unit/state/test_crashes.py::test_state_is_what_was_committed",
        ),
    ),
    Fault(
        "F17",
        "a durable state file is missing, flipped, or that of another state",
        "refused by name; rebuilt from an older state and Kafka, or refused with the reason",
        T1,
        (
            f"{REBUILD}test_lost_state_comes_back_byte_by_byte_and_the_stream_goes_on",
            f"{REBUILD}test_other_code_than_then_rebuilds_nothing",
            f"{REBUILD}test_a_rewind_between_question_and_answer_refuses_the_rebuild_by_name",
            f"{REBUILD}test_messages_that_kafka_no_longer_has_refuse_it_by_name",
            f"{REBUILD}test_state_of_a_savepoint_is_rebuilt_too",
            f"{REBUILD}test_a_rebuild_that_is_killed_is_done_again",
            f"{REBUILD}test_a_first_batch_that_a_message_suspended_is_folded_as_it_was",
            f"{DAMAGE}test_state_that_is_damaged_is_named_and_nothing_is_committed_without",
            f"{DAMAGE}test_state_that_is_damaged_ends_a_run_on_spark_at_once_and_no_message_is_suspected",
            f"{DAMAGE}test_a_file_of_another_state_in_its_place_is_found",
            "unit/state/test_changelog.py::test_every_flipped_byte_is_found",
            "integration/operations/test_repair.py::test_state_is_read_whole_so_that_one_wrong_bit_is_found",
        ),
    ),
    Fault(
        "F18",
        "a file of the ledger is missing or flipped",
        "refused by name, with the repair command",
        T1,
        (
            f"{DAMAGE}test_a_ledger_file_that_is_damaged_is_refused",
            f"{DAMAGE}test_a_flipped_byte_of_the_ledger_is_refused_wherever_it_is",
            "unit/table/test_side_tables.py::test_a_ledger_file_that_is_gone_is_refused",
            "unit/table/test_side_tables.py::test_a_ledger_file_that_was_cut_is_refused",
        ),
    ),
    Fault(
        "F19",
        "a side table is behind by more than the last batch, or ahead",
        "refused; the repair command corrects it or names the loss",
        T1,
        (
            "unit/table/test_side_tables.py::test_a_ledger_that_is_behind_by_two_is_refused",
            "unit/table/test_side_tables.py::test_a_ledger_that_is_ahead_is_refused",
            "integration/operations/test_repair.py::test_a_ledger_that_is_behind_is_brought_forward_from_the_log_of_the_table",
            "integration/operations/test_repair.py::test_a_ledger_ahead_of_the_table_says_that_the_table_lost_entries",
            "integration/operations/test_repair.py::test_a_batch_whose_entry_is_empty_is_read_again_from_kafka",
            "unit/operations/test_lost_batch.py::test_an_emptied_entry_has_one_cause_and_a_way_out",
        ),
    ),
    Fault(
        "F20",
        "the output table is missing, Kafka is complete",
        "no start without `lockstep reset`",
        T1,
        ("integration/engine/test_group_offsets.py::test_a_table_that_is_gone_is_refused_until_it_is_reset",),
    ),
    Fault(
        "F21",
        "the output table is restored to an older version, or another tool commits to a table",
        "stopped, with version and author; one command sets the commit aside",
        T1,
        (
            f"{DAMAGE}test_a_restore_by_somebody_else_stops_the_stream_with_its_version_and_author",
            "unit/table/test_foreign_commits.py::test_a_restore_is_seen_although_the_table_is_as_it_once_was",
            f"{OTHERS}test_what_another_tool_commits_stops_the_stream_by_name_and_one_command_sets_it_aside",
            f"{DAMAGE}test_what_spark_commits_stops_the_stream_by_name_and_one_command_sets_it_aside",
            f"{OTHERS}test_compaction_and_housekeeping_do_not_build_on_what_another_tool_committed",
            f"{OTHERS}test_a_vacuum_that_finds_nothing_is_none",
            f"{OTHERS}test_a_vacuum_after_a_restore_deletes_what_is_needed_and_each_file_is_named",
            f"{OTHERS}test_what_a_log_checkpoint_holds_is_not_set_aside",
            "integration/readers/test_changes.py::test_a_change_by_spark_is_refused_by_name_and_set_aside",
            "unit/table/test_foreign_commits.py::test_what_others_have_done_to_rows_is_undone_by_repair",
            "unit/table/test_descriptions.py::test_a_description_stops_nobody_and_stays",
            "unit/table/test_descriptions.py::test_any_other_change_is_refused_by_name",
        ),
    ),
    Fault(
        "F22",
        "a commit succeeds, its answer is lost",
        "one copy of the rows",
        T0,
        (
            "unit/table/test_lost_answers.py::test_a_commit_whose_answer_is_lost_has_landed_once",
            "unit/table/test_lost_answers.py::test_an_addition_to_a_side_table_whose_answer_is_lost_is_there_once",
            "unit/table/test_lost_answers.py::test_the_next_claim_finds_a_commit_that_arrived_late",
            "unit/table/test_lost_answers.py::test_a_commit_that_arrives_after_the_next_claim_is_refused",
        ),
    ),
    Fault(
        "F23",
        "the pointer to the last log checkpoint is corrupt; a log version is missing",
        "ignored; refused",
        T1,
        (
            f"{DAMAGE}test_a_corrupt_pointer_to_the_last_checkpoint_changes_nothing",
            f"{DAMAGE}test_a_log_version_that_is_missing_is_loud",
            "integration/operations/test_repair.py::test_a_ledger_that_is_gone_or_damaged_in_the_middle_is_said_and_left_as_it_is",
        ),
    ),
)


LOGS = "faults/matrix/test_kafka_logs.py::"
CUT = "faults/matrix/test_cut_logs.py::"
DELETED = "integration/engine/test_deleted_topics.py::"
CLEAN = "features/retention/test_state_gc.py::"
DESIRE = "integration/operations/test_lifecycle.py::"
BACKLOG = "faults/matrix/test_backlog.py::"
SUSPEND = "integration/engine/test_suspend.py::"

MIRROR = "features/copies/test_relocate_to_mirror.py::"
RELOCATE = "features/copies/test_relocate.py::"
DERIVE = "features/derived/test_derive_end_to_end.py::"

LOGS_AND_WRITERS: tuple[Fault, ...] = (
    Fault(
        "F28",
        "retention passes the position while the stream is stopped",
        "the class decides, with the exact range",
        T1,
        (
            f"{LOGS}test_what_expired_while_the_stream_was_stopped_halts_a_strict_one_with_the_exact_range",
            f"{LOGS}test_what_expired_is_counted_by_an_ordered_one_whose_sessions_wait_for_a_snapshot",
            f"{LOGS}test_what_expired_is_counted_by_best_effort_which_goes_on",
            f"{LOGS}test_a_range_that_expired_is_in_the_ledger_once_although_nothing_came_after_it",
            "integration/engine/test_expired.py::test_those_of_a_partition_that_a_topic_got_are_in_the_ledger",
            (
                "integration/engine/test_expired.py::"
                "test_those_of_a_partition_that_a_topic_got_halt_a_class_that_reads_it_without_asking"
            ),
            "integration/engine/test_runs.py::test_one_odd_answer_of_a_broker_loses_nothing",
        ),
    ),
    Fault(
        "F29",
        "the log ends before the position, or was cut and has grown past it again",
        "the class decides",
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
        "a topic is deleted without retirement",
        "an event if every message was read; otherwise the class decides",
        T1,
        (
            f"{LOGS}test_a_topic_that_is_deleted_halts_a_strict_stream",
            f"{LOGS}test_a_topic_that_is_deleted_is_missed_and_the_others_go_on",
            f"{DELETED}test_the_deletion_of_a_topic_that_is_read_is_an_event_and_the_others_go_on",
            f"{DELETED}test_unread_messages_make_a_deletion_a_fault_of_that_topic_by_class",
            f"{DELETED}test_a_topic_that_is_read_and_created_again_is_another_topic",
            f"{DELETED}test_a_batch_may_take_longer_than_an_observation_counts",
            f"{DELETED}test_messages_of_an_open_transaction_are_unread",
        ),
    ),
    Fault(
        "F31",
        "a topic is deleted and re-created, longer than before",
        "another topic id: the class decides",
        T1,
        (
            "integration/engine/test_runs.py::test_a_topic_created_again_between_runs_halts_the_stream_by_name",
            f"{SUSPEND}test_a_topic_created_again_is_a_new_topic_to_a_class_that_bears_it",
            f"{LOGS}test_what_was_read_of_a_topic_that_was_replaced_meanwhile_is_thrown_away",
            f"{LOGS}test_a_class_that_bears_it_reads_the_new_topic_from_its_start",
            f"{LOGS}test_a_topic_that_was_replaced_after_its_leader_had_changed_is_read",
        ),
    ),
    Fault(
        "F32",
        "a new topic starts after offset 0; a topic is hidden by access rules",
        "the class decides",
        T1,
        (
            f"{LOGS}test_a_first_run_reads_a_topic_whose_beginning_is_gone_from_its_first_offset_which_the_ledger_names",
            f"{LOGS}test_a_topic_that_came_later_and_lost_its_beginning_unread_halts_a_strict_stream",
            f"{LOGS}test_a_topic_that_came_later_and_lost_its_beginning_is_counted_by_best_effort",
            f"{LOGS}test_a_topic_that_came_later_is_joined_where_its_start_says_so",
            f"{LOGS}test_a_session_whose_beginning_is_gone_is_unknown_to_a_strict_stream",
            "integration/security/test_connections.py::test_a_topic_that_is_hidden_is_no_missing_topic",
            "integration/security/test_stream.py::test_a_new_topic_that_may_not_be_read_is_named_and_holds_up_no_other",
        ),
    ),
    Fault(
        "F33",
        "partitions are added in the middle of sessions",
        "the class decides",
        T1,
        (
            f"{LOGS}test_partitions_that_are_added_halt_a_stream_that_did_not_say_what_they_mean",
            f"{SUSPEND}test_growth_restarts_the_sessions_of_a_topic_where_that_is_declared",
            f"{SUSPEND}test_growth_suspends_a_partition_that_is_silent_until_after_a_restart",
        ),
    ),
    Fault(
        "F34",
        "the producer repeats messages",
        "the class decides; repeats are counted",
        T1,
        (f"{SUSPEND}test_what_cannot_be_applied_goes_to_quarantine_and_the_rest_goes_on",),
    ),
    Fault(
        "F35",
        "two messages arrive in the wrong order",
        "the class decides",
        T1,
        (
            f"{SUSPEND}test_what_cannot_be_applied_goes_to_quarantine_and_the_rest_goes_on",
            "streams/checksummed_books/test_faults.py::test_swapped_updates_are_refused_exactly_where_the_exchange_first_disagrees",
        ),
    ),
    Fault(
        "F36",
        "numbers of a session are missing",
        "the class decides, with the numbers",
        T1,
        (
            f"{SUSPEND}test_what_cannot_be_applied_goes_to_quarantine_and_the_rest_goes_on",
            "streams/checksummed_books/test_faults.py::test_a_lost_update_is_refused_exactly_where_the_exchange_first_disagrees",
        ),
    ),
    Fault(
        "F37",
        "an aborted transaction, markers at the end of a range, a transaction that stays open",
        "explained, no false alarm; a transaction that stays open is lag, and is reported",
        T1,
        (
            "integration/engine/test_transactions.py::test_markers_and_aborted_messages_are_explained_holes_and_a_strict_stream_goes_on",
            (
                "integration/engine/test_transactions.py::"
                "test_a_bounded_run_says_what_it_leaves_behind_a_young_open_transaction"
            ),
            f"{NETWORK}test_an_aborted_transaction_that_takes_longer_than_the_patience_is_passed_over",
            f"{NETWORK}test_markers_that_take_longer_than_the_patience_are_explained",
            f"{BACKLOG}test_what_lies_behind_an_open_transaction_is_lag_and_the_topic_not_drained",
            f"{BACKLOG}test_a_transaction_that_stays_open_is_told_once_and_with_each_batch_until_it_ends",
            "unit/engine/test_log_warnings.py::test_a_stable_end_that_stands_for_longer_than_the_patience_is_told_with_place_and_time",
        ),
    ),
    Fault(
        "F38",
        "a topic is compacted",
        "classes that need every message refuse to start",
        T1,
        ("integration/engine/test_transactions.py::test_a_compacted_topic_is_refused_at_start",),
    ),
    Fault(
        "F24",
        "a broker of three is killed and returns; all brokers are restarted in turn",
        "the stream continues with the other leaders",
        T2,
        (f"{BROKERS}test_a_killed_broker_and_a_rolling_restart_lose_nothing",),
    ),
    Fault(
        "F25",
        "a broker of three is stopped (SIGSTOP) and keeps its connections",
        "partitions of other leaders continue immediately, those of the broker with their next leader",
        T1,
        (
            f"{BROKERS}test_a_silent_broker_holds_up_its_own_partitions_only",
            f"{BROKERS}test_a_run_that_starts_while_the_leader_of_all_is_silent_waits_for_the_next_one",
            f"{NETWORK}test_offsets_that_no_broker_gives_are_asked_for_again",
            f"{NETWORK}test_offsets_by_time_that_no_broker_gives_are_no_end_of_a_log",
        ),
    ),
    Fault(
        "F26",
        "the link to Kafka carries nothing for a minute",
        "the stream waits and continues",
        T2,
        (f"{NETWORK}test_a_link_that_carries_nothing_for_a_minute_is_waited_for",),
    ),
    Fault(
        "F27",
        "the link to Kafka has a tenth of a second each way and 3 Mbit/s",
        "the stream is as slow as the link",
        T1,
        (f"{NETWORK}test_a_slow_link_makes_a_stream_slow_and_nothing_else",),
    ),
    Fault(
        "F63",
        "one partition among many has no leader, or its leader is silent",
        "the others continue; an alarm names it",
        T1,
        (
            f"{BROKERS}test_a_silent_broker_holds_up_its_own_partitions_only",
            (
                "integration/operations/test_health.py::"
                "test_a_partition_without_a_leader_is_named_and_the_log_of_a_run_warns_of_it"
            ),
        ),
    ),
    Fault(
        "F40",
        "an outage, then ten batches at once",
        "bounded batches, bounded memory, all messages are read",
        T2,
        (f"{BACKLOG}test_after_an_outage_a_backlog_is_read_in_batches_that_keep_their_bound",),
    ),
    Fault(
        "F41",
        "two runs of one stream are started together",
        "each row is written by one run",
        T1,
        (
            f"{WRITERS}test_of_two_drivers_started_together_each_row_is_written_by_one",
            f"{WRITERS}test_however_often_two_drivers_race_the_table_stays_whole",
            "unit/table/test_commit.py::test_of_two_racing_claims_one_wins_and_the_other_is_fenced",
            "unit/table/test_raced_commits.py::test_whatever_the_interleaving_every_offset_is_committed_once_and_in_order",
        ),
    ),
    Fault(
        "F42",
        "another stream, or another Kafka cluster, uses the table",
        "refused by the identity of the table",
        T1,
        (
            f"{DAMAGE}test_a_stream_that_is_pointed_at_the_table_of_another_is_refused_by_name",
            f"{DAMAGE}test_a_table_of_another_kafka_is_refused_by_its_id",
            f"{LOGS}test_a_run_whose_kafka_is_another_cluster_all_at_once_reads_nothing_of_it",
        ),
    ),
    Fault(
        "F43",
        "kill -9 of a compaction at six phases during batches and 1,000 reads",
        "rows unchanged, the stream continues, no wrong read",
        T2,
        (
            f"{COMPACTION}test_a_compaction_killed_at_a_phase_changes_no_row",
            f"{COMPACTION}test_twenty_kills_at_each_phase_while_streaming_change_no_row",
            f"{COMPACTION}test_twenty_kills_of_a_minor_compaction_at_each_phase_change_no_row",
            f"{COMPACTION}test_readers_during_compactions_see_a_version_of_the_table",
            "features/compaction/test_spark.py::test_a_thousand_reads_during_compactions_see_a_version_of_the_table",
            "features/compaction/test_ledger_files.py::test_a_compaction_that_died_before_its_commit_is_done_by_the_next",
        ),
    ),
    Fault(
        "F44",
        "housekeeping during reads and with batches in flight",
        "no file is deleted that a reader, a rewind or a commit may need",
        T0,
        (
            f"{HOUSEKEEPING}test_files_that_are_live_at_the_floor_stay_although_compaction_replaced_them",
            f"{HOUSEKEEPING}test_a_file_of_a_batch_under_way_stays",
            "features/compaction/test_ledger_files.py::test_replaced_files_stay_for_readers_under_way_and_go_later",
            "features/retention/test_state_gc.py::test_a_driver_that_slept_for_days_between_its_tasks_and_its_commit_commits",
        ),
    ),
    Fault(
        "F45",
        "two compactions, two exports, or a compaction and a retention at once",
        "one commits, the other drops its work",
        T0,
        (
            "features/compaction/test_race.py::test_of_two_compactions_at_once_one_wins_each_bin_and_rows_stay_equal",
            "features/compaction/test_ledger_files.py::test_two_compactions_at_once_leave_every_row_once",
            "features/export/test_export.py::test_of_two_exports_of_an_hour_one_publishes_and_the_other_drops_its_work",
            "features/retention/test_retain.py::test_a_compaction_of_dropped_hours_comes_too_late",
            "features/retention/test_retain.py::test_a_compaction_between_plan_and_commit_makes_a_new_plan",
            "features/retention/test_retain_quarantine.py::test_a_compaction_between_plan_and_removal_loses_nothing",
            "features/retention/test_retain_quarantine.py::test_a_retention_or_rewind_before_the_commit_makes_a_new_plan",
            "features/retention/test_retain_quarantine.py::test_a_killed_retention_is_completed_by_the_next_one",
        ),
    ),
    Fault(
        "F46",
        "types of rows and states change; tables of older releases",
        "continues as documented, or refused by name",
        T1,
        (
            "unit/state/test_compatibility.py::test_state_is_refused_by_the_field_that_differs",
            "unit/state/test_codec.py::test_any_order_of_releases_reads_what_the_last_one_wrote",
            "unit/state/test_fixtures.py::test_a_stream_of_an_older_release_goes_on",
            "integration/engine/test_schema_evolution.py::test_releases_with_other_states_go_on_from_one_another_after_a_kill",
            "integration/engine/test_schema_evolution.py::test_columns_are_added_by_one_commit_and_older_rows_have_null_in_them",
            "integration/engine/test_schema_evolution.py::test_columns_that_go_or_change_are_refused_by_name",
        ),
    ),
    Fault(
        "F56",
        "a transaction is open at the time of a plan, for long",
        "ranges end at the last stable offset; lag and an alarm report it",
        T1,
        (
            f"{BACKLOG}test_what_lies_behind_an_open_transaction_is_lag_and_the_topic_not_drained",
            f"{BACKLOG}test_a_transaction_that_stays_open_is_told_once_and_with_each_batch_until_it_ends",
        ),
    ),
    Fault(
        "F57",
        "a topic is re-created between audit and reading",
        "the batch is discarded; the class decides",
        T1,
        (
            f"{LOGS}test_what_was_read_of_a_topic_that_was_replaced_meanwhile_is_thrown_away",
            f"{LOGS}test_a_class_that_bears_it_reads_the_new_topic_from_its_start",
            f"{LOGS}test_a_topic_that_was_replaced_after_its_leader_had_changed_is_read",
        ),
    ),
    Fault(
        "F58",
        "a failed job runs again in the same epoch while a worker of the first attempt still writes",
        "no committed file is overwritten",
        T2,
        (
            "integration/cluster/test_faults.py::test_a_task_that_wakes_up_after_its_batch_was_worked_elsewhere_writes_nothing_visible",
            "unit/state/test_changelog.py::test_names_never_repeat_and_say_what_the_file_is",
        ),
    ),
    Fault(
        "F59",
        "a side table lags behind the table, then clean-up runs",
        "the side table is brought forward first",
        T0,
        (
            "features/retention/test_state_gc.py::test_a_ledger_that_lags_behind_the_head_is_brought_forward_first",
            "features/compaction/test_ledger_files.py::test_a_ledger_that_lacks_the_last_batch_is_brought_forward_first",
        ),
    ),
    Fault(
        "F60",
        "somebody restores the table, then lockstep compacts it",
        "stopped at the restore; compaction does not hide it",
        T1,
        (f"{DAMAGE}test_a_restore_is_not_hidden_by_a_compaction_of_our_own_after_it",),
    ),
    Fault(
        "F61",
        "a batch planned before the end of an hour is committed after its export",
        "it is committed to a later hour",
        T1,
        (
            "features/export/test_export.py::test_a_batch_that_was_planned_into_an_exported_hour_cannot_be_committed_there",
            (
                "features/compaction/test_close_beside_a_run.py::"
                "test_a_batch_that_loses_to_a_close_is_planned_again_for_the_next_hour"
            ),
        ),
    ),
    Fault(
        "F62",
        ("a rewind is committed during a clean-up or a vacuum; rows, state or messages of a promotion are missing"),
        "refused by name, or the files stay",
        T1,
        (
            f"{REWIND}test_a_clean_up_that_has_looked_before_a_rewind_deletes_nothing_that_the_rewind_names",
            f"{REWIND}test_a_clean_up_that_raised_the_floor_first_refuses_the_rewind",
            "features/history/test_rewind.py::test_a_vacuum_that_has_begun_refuses_the_rewind",
            "correctness/rewind/test_rewinding.py::test_after_any_rewind_the_stream_is_what_it_was_and_is_proven",
            ("features/history/test_shadow.py::test_a_promotion_is_refused_by_name_where_something_is_gone"),
        ),
    ),
    Fault(
        "F64",
        "a message kills its worker each time",
        "detected and named; the class decides; the other partitions continue",
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
        "the stop holds; a later start by a person wins",
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
        "F39",
        "clocks of drivers and of maintenance are an hour or a day off, or jump under a run",
        "rows, order, epochs, handovers and the files that a rewind needs are not affected",
        T2,
        (
            f"{CLOCKS}test_runs_and_maintenance_with_clocks_that_are_off_lose_and_double_nothing",
            f"{CLOCKS}test_a_clock_that_jumps_under_a_run_loses_and_doubles_nothing",
            f"{CLOCKS}test_a_writer_hands_over_to_one_whose_clock_is_days_from_its_own",
            f"{CLEAN}test_a_clock_that_is_days_ahead_ends_no_rewind",
            "unit/orchestration/test_restart_policy.py::test_a_clock_that_jumps_costs_a_restart_for_each_jump_at_most",
            "features/retention/test_retain.py::test_the_open_hour_stays_whatever_the_clock_says",
        ),
        left="until a clock that was ahead reaches the last hour of the table, no hour closes, so compaction of closed "
        "hours, export and retention wait; with `EventTime(idle_advance=...)` it moves the watermarks of idle "
        "partitions too far; maintenance whose clock is ahead deletes replaced files immediately",
    ),
    Fault(
        "F66",
        "two first starts of a stream at the same time",
        "one table, one writer",
        T1,
        (
            "unit/table/test_create.py::test_of_first_starts_at_once_one_creates_and_all_go_on",
            (
                "integration/engine/test_group_offsets.py::"
                "test_a_first_start_that_another_one_overtakes_does_not_take_its_table_for_lost"
            ),
        ),
    ),
    Fault(
        "F67",
        "a topic is compacted while the stream is stopped, with `cleanup.policy` `delete` before and after",
        "the class decides",
        T1,
        (
            f"{HOLES}test_what_compaction_removed_is_no_marker_although_the_topic_only_deletes_again",
            f"{HOLES}test_markers_beside_what_compaction_removed_are_told_apart",
        ),
    ),
    Fault(
        "F68",
        "the broker is silent while missing offsets are explained",
        "unknown in this batch, asked again; never a finding",
        T1,
        (f"{HOLES}test_a_broker_that_is_silent_while_a_hole_is_explained_halts_nothing",),
    ),
    Fault(
        "F69",
        "workers that fail without a message as the cause, for a while or always",
        "a problem of the environment: no message is blamed",
        T1,
        (
            f"{ISOLATION}test_workers_that_fail_by_themselves_for_a_while_blame_no_message",
            f"{ISOLATION}test_what_fails_without_the_message_too_is_raised_and_blames_none",
        ),
    ),
    Fault(
        "F72",
        "a record batch is corrupt on the broker",
        "named, and judged as an undecodable message; later messages never precede it",
        T1,
        (
            f"{CORRUPT}test_a_strict_stream_halts_by_their_offsets_and_goes_on_as_resumed",
            f"{CORRUPT}test_messages_behind_a_corrupt_batch_never_come_before_it",
            f"{CORRUPT}test_a_batch_at_which_the_client_ends_its_process_is_named_once_batches_are_read_one_by_one",
        ),
    ),
    Fault(
        "F71",
        "state is cleaned up during a run whose clock is off by days, or that slept for days before its commit",
        "files that it may still commit stay; files of a fenced epoch are deleted",
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
        "continues complete, or is refused by name",
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
        "both tables are complete; the root that is behind reports the other",
        T1,
        (f"{DAMAGE}test_two_roots_of_one_stream_each_hold_all_rows_and_the_one_behind_says_that_there_is_another",),
    ),
    Fault(
        "F77",
        "kill -9 of an erasure at six phases",
        "done or not done; the next run finishes it; the other sessions are proven",
        T1,
        (
            "features/erase/test_erase.py::test_an_erasure_that_is_killed_is_done_or_not_and_can_be_repeated",
            "features/erase/test_erase.py::test_what_a_killed_erasure_left_is_finished_by_housekeeping",
            (
                "features/erase/test_erase.py::"
                "test_the_same_command_after_a_kill_behind_the_commit_finishes_it_and_succeeds"
            ),
            (
                "correctness/verify/test_erased_tables.py::"
                "test_an_erased_session_leaves_the_others_as_they_would_be_without_it"
            ),
        ),
    ),
    Fault(
        "F78",
        ("a stream moves to a mirrored cluster with topics copied twice, in part or with expired messages"),
        "it continues at the only position that the messages prove, or the import is refused",
        T1,
        (
            f"{MIRROR}test_the_command_line_imports_from_a_mirrored_cluster_by_a_checkpoint",
            f"{MIRROR}test_a_checkpoint_tells_which_of_two_copies_is_the_place",
            f"{MIRROR}test_what_is_not_proven_or_not_copied_is_refused_by_name",
            f"{MIRROR}test_a_position_that_had_expired_when_it_was_exported_is_not_taken_for_the_next_message",
        ),
    ),
    Fault(
        "F79",
        "kill -9 of an export or an import of a savepoint; an export that is cut or changed",
        "a complete export or none; a stream at the position of the savepoint or none",
        T2,
        (
            f"{RELOCATE}test_an_export_that_is_killed_passes_for_nothing_and_is_made_again",
            f"{RELOCATE}test_an_import_that_is_killed_has_happened_or_not",
            f"{RELOCATE}test_an_export_that_is_not_whole_is_refused_by_name_and_leaves_nothing",
            f"{RELOCATE}test_the_proof_finds_another_state_than_the_imported_one",
        ),
    ),
    Fault(
        "F80",
        ("a source of a derived table is rewound or erased from; its checkpoint is lost; kill -9 of a rebuild"),
        "rebuilt without a person; no row twice",
        T2,
        (
            f"{DERIVE}test_a_checkpoint_that_no_longer_fits_is_found_without_spark",
            f"{DERIVE}test_after_a_rewind_and_an_erasure_the_rows_and_their_files_are_replaced",
            f"{DERIVE}test_lost_state_is_rebuilt_in_the_same_run",
            f"{DERIVE}test_a_rewind_under_a_query_makes_it_a_rebuild",
            f"{DERIVE}test_a_batch_that_is_in_the_table_is_not_written_twice",
            f"{DERIVE}test_a_rebuild_that_is_killed_has_replaced_all_rows_or_none",
            f"{DERIVE}test_a_second_run_is_refused_while_one_writes",
        ),
    ),
    Fault(
        "F81",
        "the table of a lookup changes, vanishes or is vacuumed under a run; the run is killed",
        "each batch reads one version, that in the ledger; no message is blamed",
        T1,
        tuple(
            f"integration/engine/test_lookups.py::test_{name}"
            for name in (
                "a_table_that_changes_between_two_batches_changes_only_later_rows_and_the_proof_knows_both",
                "a_batch_that_is_planned_again_reads_the_version_of_its_first_plan",
                "a_run_that_is_killed_is_followed_by_one_that_reads_the_newest_version",
                "a_version_that_is_gone_before_its_batch_is_folded_is_replaced_by_the_newest",
                "a_table_that_is_made_anew_in_its_folder_is_another_table",
                "a_table_that_cannot_be_read_any_more_ends_the_run_and_loses_nothing",
                "a_table_that_vanishes_under_a_run_is_waited_for",
                "batches_of_a_version_that_was_vacuumed_are_not_proven_and_later_ones_are",
            )
        ),
    ),
)


PARTS = "integration/orchestration/test_dagster_faults.py::"
POSTGRES = "integration/orchestration/test_postgres.py::"
COMEBACK = "integration/orchestration/test_comeback.py::"
SUPERVISION = "unit/orchestration/test_supervisor_sensor.py::"
SUPERVISOR = "unit/orchestration/test_supervisor_policy.py::"

DAGSTER: tuple[Fault, ...] = (
    Fault(
        "F47",
        "Dagster's daemon is killed",
        "runs continue; the next daemon finds the changes of the meantime",
        T2,
        (f"{PARTS}test_a_stream_does_not_miss_a_web_server_nor_a_daemon_that_are_killed",),
    ),
    Fault(
        "F51",
        "Dagster's web server is killed",
        "no effect",
        T2,
        (f"{PARTS}test_a_stream_does_not_miss_a_web_server_nor_a_daemon_that_are_killed",),
    ),
    Fault(
        "F52",
        "200 topics within 10 seconds; topics that appear and vanish",
        "a run adopts them, or at most two restarts read them",
        T1,
        (
            "unit/orchestration/test_restart_policy.py::test_two_hundred_topics_in_ten_seconds_cost_two_restarts",
            (
                "unit/orchestration/test_restart_policy.py::"
                "test_a_topic_that_flaps_fifty_times_costs_a_few_restarts_each_of_which_is_launched"
            ),
            (
                "integration/orchestration/test_many_topics.py::"
                "test_they_cost_two_restarts_at_most_and_nothing_of_them_is_missed"
            ),
            ("integration/orchestration/test_flapping_topic.py::test_it_costs_a_few_runs_and_is_read_once_it_stays"),
            "integration/engine/test_new_topics.py::test_a_topic_that_is_gone_at_the_second_look_is_no_loss",
            "integration/engine/test_new_topics.py::test_a_topic_that_flaps_is_read_once_it_stays",
        ),
    ),
    Fault(
        "F53",
        "a tick of a sensor fails: Kafka does not answer, the cursor cannot be read",
        "the tick reports it; the next tick decides",
        T1,
        (
            "integration/orchestration/test_topics_sensor.py::test_a_failed_read_is_no_news_and_keeps_the_cursor",
            "integration/orchestration/test_topics_sensor.py::test_an_unreadable_cursor_is_reset_and_the_look_goes_on",
            f"{PARTS}test_sensors_that_get_no_answer_of_kafka_keep_their_cursor_and_look_again",
        ),
    ),
    Fault(
        "F54",
        "the databases of Dagster are locked, full, missing or silent",
        "the stream continues to write and is not started twice",
        T2,
        (
            f"{PARTS}test_a_stream_writes_on_while_the_databases_of_dagster_are_locked",
            f"{PARTS}test_a_stream_writes_on_while_the_disk_of_dagster_is_full",
            f"{PARTS}test_a_run_that_is_killed_while_the_disk_of_dagster_is_full_is_replaced_once_there_is_room",
            f"{PARTS}test_a_handover_that_meets_a_full_disk_of_dagster_leaves_one_writer",
            f"{POSTGRES}test_a_stream_writes_on_while_postgres_is_away_and_a_new_topic_waits",
            f"{POSTGRES}test_a_run_that_is_killed_while_postgres_is_away_is_replaced_once_it_is_back",
        ),
    ),
    Fault(
        "F65",
        "50 handovers in a row under load, each launched in Dagster",
        "each run follows its predecessor; nothing is lost or repeated",
        T2,
        (f"{PARTS}test_many_handovers_in_a_row_lose_nothing_and_repeat_nothing",),
    ),
    Fault(
        "F48",
        "the code server is killed",
        "the run continues and obeys Terminate; a new code server supervises it",
        T2,
        (f"{COMEBACK}test_a_run_whose_code_server_is_killed_goes_on_and_hears_terminate",),
    ),
    Fault(
        "F49",
        "a run is killed; everything is killed at once; the machine loses its power",
        "the stream runs again without a person, started once",
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
        "a run is terminated in Dagster, with any launcher and any outcome of the run",
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
        "a run key that failed is requested again",
        "each start has a different key",
        T1,
        (
            f"{SUPERVISION}test_a_start_whose_run_never_came_is_asked_for_again_under_another_key",
            f"{SUPERVISOR}test_each_start_of_a_stream_that_dies_young_has_a_key_of_its_own_though_epochs_pass",
            "unit/orchestration/test_restart_policy.py::test_a_run_that_did_not_bring_its_topics_is_asked_for_again_later_and_later",
        ),
    ),
    Fault(
        "F74",
        "the code server, the process of a run, or everything is killed, without an operator",
        "all streams with the desired state `running` run again",
        T1,
        (
            f"{COMEBACK}test_a_run_that_is_killed_is_replaced_by_the_daemon_and_shown_as_failed",
            f"{COMEBACK}test_a_run_whose_code_server_is_killed_goes_on_and_hears_terminate",
            f"{COMEBACK}test_everything_that_is_killed_at_once_is_back_with_the_next_daemon",
        ),
    ),
)
