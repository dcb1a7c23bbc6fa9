"""Faults of processes, disks and tables, and what proves them."""

from __future__ import annotations

from tests.faults.fault import Fault, Tier

T0, T1, T2 = Tier.PURE, Tier.CORE, Tier.WHOLE
KILLS = "faults/test_driver_kills.py::"
WORKERS = "faults/test_workers.py::"
WRITERS = "faults/test_writers.py::"
OTHERS = "faults/test_other_tools.py::"
DAMAGE = "faults/test_damage.py::"
DISKS = "faults/test_disks.py::"
ISOLATION = "engine/test_isolation.py::"
WATCHED = "crash/test_kills.py::test_no_kill_of_the_driver_loses_doubles_or_reorders_a_row"

MACHINES: tuple[Fault, ...] = (
    Fault(
        "F01",
        "kill -9 of the driver after planning, before the job",
        "planned again",
        T2,
        (f"{KILLS}test_after_planning_before_the_job", WATCHED),
    ),
    Fault(
        "F02",
        "kill -9 of the driver while tasks read and fold",
        "read again, the same rows",
        T2,
        (f"{KILLS}test_while_tasks_read_and_fold", WATCHED),
    ),
    Fault(
        "F03",
        "kill -9 of the driver after files are written, before the commit",
        "files that nobody names, nothing else",
        T2,
        (f"{KILLS}test_after_the_files_are_written_before_the_commit", WATCHED),
    ),
    Fault(
        "F04",
        "kill -9 of the driver inside the commit",
        "not visible",
        T2,
        (f"{KILLS}test_inside_the_commit", WATCHED),
    ),
    Fault(
        "F05",
        "kill -9 of the driver after the commit, before the side tables",
        "side tables brought forward",
        T2,
        (
            f"{KILLS}test_after_the_commit_before_the_side_tables",
            WATCHED,
            "table/test_side.py::test_a_run_that_died_between_the_two_commits_is_completed_by_the_next",
        ),
    ),
    Fault(
        "F06",
        "kill -9 of the driver between two side tables",
        "side tables brought forward",
        T2,
        (f"{KILLS}test_between_two_side_tables",),
    ),
    Fault(
        "F07",
        "kill -9 of the driver during a log checkpoint, or while a state base is written",
        "readers unharmed",
        T2,
        (
            f"{KILLS}test_during_a_log_checkpoint",
            f"{KILLS}test_while_a_state_base_is_written",
            "state/test_kills.py::test_no_kill_leads_to_a_wrong_read",
        ),
    ),
    Fault(
        "F08",
        "a Python worker is killed in the middle of a batch",
        "the task is tried again, the same rows",
        T1,
        (
            f"{WORKERS}test_a_worker_that_dies_in_the_middle_is_replaced_within_the_batch",
            "cluster/test_faults.py::test_killed_and_stopped_machines_lose_nothing_and_double_nothing",
        ),
    ),
    Fault(
        "F09",
        "workers are killed until the attempts run out",
        "planned again; if it goes on, the run ends loudly, blames no message, and the supervisor starts another",
        T1,
        (
            f"{WORKERS}test_a_batch_whose_task_ran_out_of_attempts_is_planned_again",
            f"{ISOLATION}test_what_fails_without_the_message_too_is_raised_and_blames_none",
            "orchestration/test_supervision.py::test_a_stream_that_is_to_be_running_gets_a_never_ending_run_that_can_be_launched",
        ),
    ),
    Fault(
        "F10",
        "the driver is stopped (SIGSTOP), a replacement takes over, it wakes up",
        "the old writer is fenced",
        T1,
        (
            f"{WRITERS}test_a_driver_that_wakes_up_after_its_replacement_took_over_is_fenced",
            "engine/test_runs.py::test_a_run_that_answers_nobody_is_fenced_and_what_it_wrote_stays_invisible",
        ),
    ),
    Fault(
        "F11",
        "out of memory: a worker, then the driver",
        "as F08, and F02: the kernel ends a driver by SIGKILL",
        T2,
        (
            f"{WORKERS}test_a_worker_that_dies_in_the_middle_is_replaced_within_the_batch",
            f"{KILLS}test_while_tasks_read_and_fold",
        ),
    ),
    Fault(
        "F12",
        "SIGTERM in the middle of a batch",
        "a clean end within its patience, no process left",
        T1,
        (
            "orchestration/test_runs.py::test_a_second_run_of_another_home_takes_over_and_a_signal_ends_it_without_a_trace",
            "orchestration/test_beside.py::test_work_that_does_not_listen_is_abandoned_after_its_patience",
            "orchestration/test_beside.py::test_a_spark_job_that_hangs_in_a_worker_is_abandoned_and_leaves_no_process",
        ),
    ),
    Fault(
        "F13",
        "no room for local state",
        "private copies serve; where there is no room at all the run ends by name, and goes on with room",
        T2,
        (
            f"{DISKS}test_without_room_for_hot_state_the_durable_one_serves",
            "state/test_hot.py::test_what_cannot_be_kept_hot_is_still_durable",
            "state/test_hot.py::test_a_local_folder_that_cannot_be_written_is_named",
        ),
    ),
    Fault(
        "F14",
        "no room for the table",
        "no commit, readers unharmed; goes on with room",
        T1,
        (f"{DISKS}test_no_room_for_the_table_ends_the_run_and_room_lets_the_next_go_on",),
    ),
    Fault(
        "F15",
        "EIO or ENOSPC at a write, rename, link or fsync",
        "loud or survived, nothing lost",
        T2,
        (f"{DISKS}test_a_call_that_fails_loses_nothing",),
    ),
    Fault(
        "F16",
        "a local state file is flipped, cut, swapped, or of another boot",
        "noticed and made anew",
        T0,
        (
            "state/test_hot.py::test_a_flipped_bit_is_harmless_or_found_within_three_attempts",
            "state/test_hot.py::test_a_damaged_copy_is_rebuilt_without_a_word",
            "state/test_hot.py::test_a_copy_of_a_batch_that_was_not_committed_is_rebuilt",
            "state/test_hot.py::test_a_copy_of_another_boot_is_not_used_and_is_removed",
            "state/test_crashes.py::test_state_is_what_was_committed",
        ),
    ),
    Fault(
        "F17",
        "a durable state file is missing, flipped, or another's",
        "refused, by name, with what to do",
        T1,
        (
            f"{DAMAGE}test_state_that_is_damaged_is_named_and_nothing_is_committed_without",
            f"{DAMAGE}test_state_that_is_damaged_ends_a_run_on_spark_at_once_and_no_message_is_suspected",
            f"{DAMAGE}test_a_file_of_another_state_in_its_place_is_found",
            "state/test_durable.py::test_every_flipped_byte_is_found",
            "operations/test_repair.py::test_state_is_read_whole_so_that_one_wrong_bit_is_found",
        ),
        left="rebuilding it from an older base or from the log",
    ),
    Fault(
        "F18",
        "a file of the ledger is missing or flipped",
        "refused, by name, with the repair command",
        T1,
        (
            f"{DAMAGE}test_a_ledger_file_that_is_damaged_is_refused",
            f"{DAMAGE}test_a_flipped_byte_of_the_ledger_is_refused_wherever_it_is",
            "table/test_side.py::test_a_ledger_file_that_is_gone_is_refused",
            "table/test_side.py::test_a_ledger_file_that_was_cut_is_refused",
        ),
    ),
    Fault(
        "F19",
        "a side table is behind by more than the last batch, or ahead",
        "refused; the repair command brings it forward or says what is lost",
        T1,
        (
            "table/test_side.py::test_a_ledger_that_is_behind_by_two_is_refused",
            "table/test_side.py::test_a_ledger_that_is_ahead_is_refused",
            "operations/test_repair.py::test_a_ledger_that_is_behind_is_brought_forward_from_the_log_of_the_table",
            "operations/test_repair.py::test_a_ledger_ahead_of_the_table_says_that_the_table_lost_entries",
        ),
    ),
    Fault(
        "F20",
        "the output table is gone, Kafka is whole",
        "no start without `lockstep reset --new`",
        T1,
        ("engine/test_publish.py::test_a_table_that_is_gone_is_refused_until_it_is_reset",),
    ),
    Fault(
        "F21",
        "somebody restores the output table to an older version, or another tool commits to a table of the stream",
        "stopped, with version and author; nothing is skipped; one command sets it aside",
        T1,
        (
            f"{DAMAGE}test_a_restore_by_somebody_else_stops_the_stream_with_its_version_and_author",
            "table/test_foreign_commits.py::test_a_restore_is_seen_although_the_table_is_as_it_once_was",
            f"{OTHERS}test_what_another_tool_commits_stops_the_stream_by_name_and_one_command_sets_it_aside",
            f"{DAMAGE}test_what_spark_commits_stops_the_stream_by_name_and_one_command_sets_it_aside",
            f"{OTHERS}test_compaction_and_housekeeping_do_not_build_on_what_another_tool_committed",
            f"{OTHERS}test_a_vacuum_that_finds_nothing_is_none",
            f"{OTHERS}test_a_vacuum_after_a_restore_deletes_what_is_needed_and_each_file_is_named",
            f"{OTHERS}test_what_a_log_checkpoint_holds_is_not_set_aside",
        ),
    ),
    Fault(
        "F22",
        "a commit lands, its answer is lost",
        "one copy of the rows",
        T0,
        (
            "table/test_lost_answers.py::test_a_commit_whose_answer_is_lost_has_landed_once",
            "table/test_lost_answers.py::test_an_addition_to_a_side_table_whose_answer_is_lost_is_there_once",
            "table/test_lost_answers.py::test_the_next_claim_finds_a_commit_that_arrived_late",
            "table/test_lost_answers.py::test_a_commit_that_arrives_after_the_next_claim_is_refused",
        ),
    ),
    Fault(
        "F23",
        "the pointer to the last log checkpoint is corrupt; a log version is missing",
        "read on; loud",
        T1,
        (
            f"{DAMAGE}test_a_corrupt_pointer_to_the_last_checkpoint_changes_nothing",
            f"{DAMAGE}test_a_log_version_that_is_missing_is_loud",
            "operations/test_repair.py::test_a_ledger_that_is_gone_or_damaged_in_the_middle_is_said_and_left_as_it_is",
        ),
    ),
)
