"""The mutants: removed rules of commit, planner, gates, floor, rewind, promotion, erasure, copies and requests.

A piece of source must occur exactly once in its file; `test_mutants.py` names the mutant whose piece does not. Remove a
rule as by mistake: the condition is never met, an argument is left out, or the other bound is used.
"""

from __future__ import annotations

from tests.house.mutants.mutant import Change, list_mutants

COMMIT = list_mutants(
    "table/commit.py",
    "unit/table/test_commit.py",
    Change(
        "a claim replaces the epoch that it names",
        "if base.head.epoch != named_epoch:",
        "if False:",
        "test_a_claim_replaces_the_epoch_it_names_and_no_other",
    ),
    Change(
        "a claim of a changed policy drops one under which no batch was written",
        "policies = tuple(change for change in head.policies if change.first_batch <= head.batch)",
        "policies = head.policies",
        "test_a_claim_records_a_changed_policy_from_the_next_batch_on",
    ),
    Change(
        "a batch follows the last one",
        "if head.batch != planned.number - 1:",
        "if head.batch >= planned.number:",
        "test_a_batch_that_does_not_follow_the_last_is_refused",
    ),
    Change(
        "a batch is not committed twice",
        "if head.batch != planned.number - 1:",
        "if head.batch < planned.number - 1:",
        "test_a_batch_that_does_not_follow_the_last_is_refused",
    ),
    Change(
        "a batch is of the epoch that holds the table",
        "if head.epoch != writer.epoch or head.generation != writer.generation:",
        "if head.generation != writer.generation:",
        "test_a_zombie_is_fenced_and_its_batch_stays_invisible",
    ),
    Change(
        "a batch is of the generation of the table",
        "if head.epoch != writer.epoch or head.generation != writer.generation:",
        "if head.epoch != writer.epoch:",
        "test_a_writer_of_another_generation_is_fenced",
    ),
    Change(
        "nothing is committed into a closed hour",
        "if hour <= head.closed_hour or hour < head.hour:",
        "if hour < head.hour:",
        "test_nothing_lands_in_a_closed_hour",
    ),
    Change(
        "the newest closed hour is closed, too",
        "if hour <= head.closed_hour or hour < head.hour:",
        "if hour < head.closed_hour or hour < head.hour:",
        "test_nothing_lands_in_a_closed_hour",
    ),
    Change(
        "hours never go back",
        "if hour <= head.closed_hour or hour < head.hour:",
        "if hour <= head.closed_hour:",
        "test_hours_never_go_back",
    ),
    Change(
        "an hour stays closed",
        "closed_hour=max(hour, base.head.closed_hour)",
        "closed_hour=hour",
        "test_closing_an_hour_again_or_an_older_one_changes_nothing",
    ),
    Change(
        "a needed file is there",
        '        if status is None:\n            raise _bad_file(path, "is missing")\n        if status.size < size:',
        "        if status is not None and status.size < size:",
        "test_a_file_beside_the_table_that_is_gone_is_not_referred_to",
    ),
    Change(
        "a needed file has the size that is needed",
        "if status.size < size:",
        "if False:",
        "test_a_file_beside_the_table_that_was_cut_is_not_referred_to",
    ),
    Change(
        "a data file has its size",
        "if status.size != file.size:",
        "if status.size > file.size:",
        "test_a_file_that_was_cut_is_not_named",
    ),
    Change(
        "a data file is too young for a vacuum",
        "time.time() - status.modified_at > OLDEST_FILE_SECONDS",
        "time.time() - status.modified_at > 10 * OLDEST_FILE_SECONDS",
        "test_a_file_that_a_vacuum_may_take_is_not_named",
    ),
    Change(
        "each attempt checks the files that it names",
        "            _check_files(self.folder, proposal.adds, proposal.needs)  # 2\n",
        "",
        "test_a_file_that_is_gone_is_not_named",
    ),
    Change(
        "findings make a batch a halt",
        "    if planned.findings or planned.topic_findings:\n        return commit_kinds.HALT",
        "    if planned.topic_findings:\n        return commit_kinds.HALT",
        "test_a_batch_with_findings_is_the_halt",
    ),
    Change(
        "a halt remembers the desired state",
        "resumes_as = head.resumes_as if halted else head.desired",
        "resumes_as = head.resumes_as",
        "unit/table/test_desired_state.py::test_a_resumption_gives_back_the_desired_state_of_before_the_halt",
    ),
    Change(
        "a halt of a halted stream leaves the state to resume into",
        "resumes_as = head.resumes_as if halted else head.desired",
        "resumes_as = head.desired",
        "unit/table/test_desired_state.py::test_a_resumption_that_halts_again_leaves_the_state_to_resume_into",
    ),
    Change(
        "a halted stream stays halted, whatever is desired",
        "if head.desired is Desired.HALTED:",
        "if False:",
        "unit/table/test_desired_state.py::test_what_is_wanted_of_a_halted_stream_holds_once_it_is_resumed",
    ),
    Change(
        "a desired state is of the writer of the epoch",
        "        check_writer(base.head, writer)\n        return _with_wanted_state",
        "        return _with_wanted_state",
        "test_what_is_wanted_of_a_stream_is_said_by_its_writer_alone",
    ),
    Change(
        "columns are changed by the writer of the epoch",
        "    def check(head: Head) -> None:\n        check_writer(head, writer)",
        "    def check(head: Head) -> None:\n        del head",
        "test_a_fenced_writer_changes_no_columns",
    ),
    Change(
        "an addition to a side table names the one before",
        "before.batch if before is not None else 0",
        "0",
        "unit/table/test_side_tables.py::test_an_addition_to_a_table_that_few_batches_add_to_names_the_one_before",
    ),
    Change(
        "the newest full ledger file is named until the next one",
        "full_ledger_batch=planned.number if is_full else head.full_ledger_batch",
        "full_ledger_batch=planned.number",
        "test_the_newest_ledger_file_with_all_positions_is_named_until_the_next_one",
    ),
    Change(
        "a foreign commit stops everyone",
        "if (ours := self._tail.find_number(transactions.VERSION)) < version:",
        "if (ours := self._tail.find_number(transactions.VERSION)) < 0:",
        "unit/table/test_foreign_commits.py",
    ),
)

LOG = list_mutants(
    "table/delta_log.py",
    "unit/table/test_lost_answers.py",
    Change(
        "a lost race is not taken for a landed commit",
        "if written is None or written.token != token:",
        "if written is None:",
        "test_a_lost_answer_to_a_lost_race_is_a_lost_race",
    ),
    Change(
        "a commit is on the disk before it is reported",
        "        find_storage(table).sync(make_entry_path(table, entry.version))  # 5\n",
        "",
        "test_a_commit_is_on_the_disk_before_anybody_is_told_of_it",
    ),
    Change(
        "a commit without an answer is not repeated",
        "if written is None and not (finds_late and attempt < UNANSWERED_MAX):",
        "if written is None and not attempt < UNANSWERED_MAX:",
        "test_a_commit_that_nobody_answers_for_ends_the_run",
    ),
)

SIDE_TABLES = list_mutants(
    "table/side_tables.py",
    "unit/table/test_side_tables.py",
    Change(
        "an addition is made once",
        "            if newest == batch:\n                return None\n",
        "",
        "test_a_ledger_that_is_level_is_left_alone",
    ),
    Change(
        "only the last addition may be missing",
        "if newest != after:",
        "if newest > after:",
        "test_a_ledger_that_is_behind_by_two_is_refused",
    ),
    Change(
        "a side table is not ahead of the output table",
        "if newest != after:",
        "if newest < after:",
        "test_a_ledger_that_is_ahead_is_refused",
    ),
    Change(
        "an added file is whole",
        "            _check(self._side, files)\n",
        "",
        "test_a_ledger_file_that_is_gone_is_refused test_a_ledger_file_that_was_cut_is_refused",
    ),
    Change(
        "a foreign commit to a side table stops the writer",
        "            refuse_foreign(self._side, tail.version)\n",
        "",
        "test_a_log_checkpoint_of_the_ledger_by_somebody_else_does_no_harm_and_a_commit_is_refused",
    ),
)

COMMITTER = list_mutants(
    "engine/driver/committer.py",
    "unit/engine/test_committer.py",
    Change(
        "a batch waits for the side tables of the one before",
        "        self.wait_for_side_tables()  # 1\n",
        "",
        "test_a_batch_waits_until_the_side_tables_hold_the_one_before",
    ),
    Change(
        "a commit names the state files that its ledger rows need",
        "return needs | {folders.state / name: size for name, size in states.items()}",
        "return needs",
        "test_a_batch_of_which_a_file_is_cut_before_its_commit_is_not_committed",
    ),
)

PLANNER = list_mutants(
    "engine/driver/planner.py",
    "unit/engine/test_planner.py",
    Change(
        "a log that begins after the position waits for the audit",
        " or position.next_offset < ends.start:",
        ":",
        "test_a_partition_whose_log_begins_after_its_position_waits_for_the_audit",
    ),
    Change(
        "open transactions are not read",
        "end = min(ends.stable_end, given.stop_at.get(key, ends.stable_end))",
        "end = min(ends.high_watermark, given.stop_at.get(key, ends.high_watermark))",
        "test_open_transactions_are_not_read",
    ),
    Change(
        "a bounded run ends at its bounds",
        "end = min(ends.stable_end, given.stop_at.get(key, ends.stable_end))",
        "end = ends.stable_end",
        "test_no_range_passes_the_stable_end_or_where_the_run_is_to_stop",
    ),
    Change(
        "a position beyond the end is not read",
        "if end > position.next_offset:",
        "if end != position.next_offset:",
        "test_a_position_past_the_end_is_not_read",
    ),
    Change(
        "a resting partition is left out",
        "key in given.resting or ",
        "",
        "test_a_partition_that_rests_is_left_out_of_the_batch_and_of_its_backlog",
    ),
    Change(
        "each partition has a minimum share",
        "min(lag, max(floor, lag * most // total))",
        "min(lag, lag * most // total)",
        "test_every_lagging_partition_gets_its_floor",
    ),
    Change(
        "partitions far behind take turns",
        "first = given.batch.number * turn % len(far)",
        "first = turn % len(far)",
        "test_partitions_far_behind_take_turns_and_all_have_had_theirs_after_one_round",
    ),
    Change(
        "a small backlog is in each batch",
        "far = sorted(key for key, lag in lagging.items() if lag > _floor(lagging, given.messages_max))",
        "far = sorted(lagging)",
        "test_a_small_topic_takes_part_in_every_turn_of_the_others",
    ),
    Change(
        "a batch with a backlog is not read beyond its end",
        "if ranges and messages == waiting else 0",
        "if ranges else 0",
        "test_a_turn_of_partitions_that_waited_is_not_read_beyond_its_ends_while_others_wait",
    ),
    Change(
        "with many ranges none is read beyond its end",
        "if given.is_live and len(ranges) <= BEYOND_PARTITIONS_MAX:",
        "if given.is_live:",
        "test_only_a_live_batch_without_a_backlog_goes_on_beyond_its_ends",
    ),
    Change(
        "a small batch is one bin",
        "count = 1 if is_small else min(",
        "count = min(",
        "test_a_small_batch_is_one_bin",
    ),
    Change(
        "a partition leaves a bin that would take too long",
        "if chosen >= count or load[chosen] + costs[place] > most:",
        "if chosen >= count:",
        "test_partitions_that_share_a_bin_are_spread_once_it_would_take_too_long",
    ),
    Change(
        "a partition keeps its bin",
        "if chosen >= count or load[chosen] + costs[place] > most:",
        "if True:",
        "test_a_partition_keeps_its_bin_where_another_would_do_as_well",
    ),
    Change(
        "the ranges of a bin are in the order of rows",
        "return tuple(items[place] for place in sorted(places))",
        "return tuple(items[place] for place in places)",
        "test_the_ranges_of_a_bin_are_in_the_order_of_rows",
    ),
    Change(
        "the hour of a batch is not before that of the last",
        "return max(clock_hour, head_hour, after_closed)",
        "return max(clock_hour, after_closed)",
        "test_the_log_closes_hours_not_the_clock",
    ),
    Change(
        "the hour of a batch is not a closed one",
        "return max(clock_hour, head_hour, after_closed)",
        "return max(clock_hour, head_hour)",
        "test_the_log_closes_hours_not_the_clock",
    ),
)

BATCH_CHECKS = list_mutants(
    "engine/driver/batch_checks.py",
    "unit/engine/test_batch_checks.py",
    Change(
        "a burst is at least a number of messages",
        "if refused < limits.quarantine_burst or refused <= limits.quarantine_share * messages:",
        "if refused <= limits.quarantine_share * messages:",
        "test_a_burst_is_more_than_a_number_and_a_share_of_a_batch_and_is_named_where_most_were_refused",
    ),
    Change(
        "a burst is more than a share of the batch",
        "if refused < limits.quarantine_burst or refused <= limits.quarantine_share * messages:",
        "if refused < limits.quarantine_burst:",
        "test_a_burst_is_more_than_a_number_and_a_share_of_a_batch_and_is_named_where_most_were_refused",
    ),
    Change(
        "an end in another partition does not free a session",
        "if self._partition_of.get((topic_id, session)) == partition:",
        "if (topic_id, session) in self._partition_of:",
        "test_an_end_elsewhere_does_not_free_it",
    ),
)

STRICT = list_mutants(
    "integrity/strict.py",
    "unit/integrity/test_sequence.py",
    Change(
        "an update does not repeat the last number",
        "if number == following or (number == state and envelope.kind is SNAPSHOT):",
        "if number == following or number == state:",
        "test_a_repeated_message_is_refused_where_it_repeats",
    ),
    Change(
        "numbers rise by one",
        "if number == following or (number == state and envelope.kind is SNAPSHOT):",
        "if number >= following or (number == state and envelope.kind is SNAPSHOT):",
        "test_a_removed_message_is_missed_at_the_very_next_one",
    ),
    Change(
        "a snapshot may repeat the last number",
        "if number == following or (number == state and envelope.kind is SNAPSHOT):",
        "if number == following:",
        "test_a_snapshot_may_come_anywhere_with_the_last_number",
    ),
    Change(
        "an update opens no session",
        "    if envelope.kind is not SNAPSHOT:\n        return None, report",
        "    if False:\n        return None, report",
        "test_what_is_judged_and_remembered",
    ),
    Change(
        "a message with ids covers those after the snapshot only once",
        "return LastLink(link.last, is_fresh and envelope.kind is SNAPSHOT), ACCEPT",
        "return LastLink(link.last, is_fresh), ACCEPT",
        "unit/integrity/test_linked.py unit/integrity/test_linked_feeds.py",
    ),
    Change(
        "ids do not go back inside of a message",
        "follows = _forward(link) and (_continues(link, last) or (is_fresh and _covers(link, last)))",
        "follows = _continues(link, last) or (is_fresh and _covers(link, last))",
        "unit/integrity/test_linked.py",
    ),
    Change(
        "a session ends with as many messages as its end says",
        "if envelope.kind is END and envelope.count is not None and envelope.count != seen:",
        "if envelope.kind is END and envelope.count is not None and envelope.count < seen:",
        "unit/integrity/test_counts_and_wraps.py::test_the_count_at_the_end_is_compared",
    ),
    Change(
        "a repeat has the content of the first",
        "if number is not None and recent.get(number) == content:",
        "if number is not None and number in recent:",
        "unit/integrity/test_deduplication.py",
    ),
    Change(
        "numbers that restart are no repeats",
        "        if envelope.restarts_sequence:\n            recent = {}\n",
        "",
        "unit/integrity/test_deduplication.py",
    ),
)

ORDERED = list_mutants(
    "integrity/ordered.py",
    "unit/integrity/test_counts_and_wraps.py",
    Change(
        "a message that goes back is dropped",
        "if number > last:\n            return number, accept",
        "if number != last:\n            return number, accept",
        "unit/integrity/test_ordered.py",
    ),
    Change(
        "an update of an unknown session suspends it",
        "        if state is None:\n            return None, report",
        "        if False:\n            return None, report",
        "unit/integrity/test_ordered.py",
    ),
)

ONCE = list_mutants(
    "integrity/once.py",
    "unit/integrity/test_once.py",
    Change(
        "one id has one content",
        "    if not same:\n        return report_violation",
        "    if False:\n        return report_violation",
        "test_each_message_once",
    ),
    Change(
        "a session ends with as many messages as its end says",
        "messages + 1 != envelope.count:",
        "messages + 1 < envelope.count:",
        "test_each_message_once",
    ),
    Change(
        "old ids are forgotten",
        "while len(ids) > self._keep:",
        "while len(ids) > self._keep + 1:",
        "test_each_message_once",
    ),
)

FUZZY_WINDOW = list_mutants(
    "integrity/fuzzy_window.py",
    "unit/integrity/test_fuzzy_window.py",
    Change(
        "a message after a missing one waits for it",
        "if number > last + 1:\n            return self._wait(",
        "if number > last + 2:\n            return self._wait(",
        "test_the_order_of_the_producer",
    ),
    Change(
        "messages that waited follow the missing one",
        "ready = 0 if envelope.kind is Kind.END else _in_a_row(waiting, number)",
        "ready = 0",
        "test_the_order_of_the_producer",
    ),
    Change(
        "a released number is not released again",
        "if number <= last:\n            return order, Verdict(Judgement.LATE",
        "if number < last:\n            return order, Verdict(Judgement.LATE",
        "test_the_order_of_the_producer",
    ),
    Change(
        "an implausible time moves nothing",
        "number = envelope.sequence\n        if self._time.is_implausible(happened_us):",
        "number = envelope.sequence\n        if False:",
        "test_the_order_of_the_producer",
    ),
    Change(
        "a message behind the bound is late",
        "if happened_us < floor_us and state is not None:",
        "if False:",
        "test_any_order",
    ),
)

MULTIPART = list_mutants(
    "integrity/multipart.py",
    "unit/integrity/test_multipart.py",
    Change(
        "the end of a session interrupts its snapshot",
        '    if envelope.kind is Kind.END:\n        return "the end of the session"\n',
        "",
        "test_a_snapshot_over_several_messages",
    ),
    Change(
        "a refused message changes no memory",
        "inner_state = deepcopy(parts.inner)",
        "pass",
        "test_a_message_that_cannot_be_part_of_an_open_snapshot_leaves_no_trace_in_the_memory",
    ),
    Change(
        "a snapshot has an end",
        "if len(parts.offsets) >= PARTS_MAX:",
        "if len(parts.offsets) > PARTS_MAX:",
        "test_a_snapshot_of_more_parts_than_there_may_be_is_refused",
    ),
)

SUSPENSION = list_mutants(
    "integrity/suspension.py",
    "unit/integrity/test_suspension.py",
    Change(
        "a session that began before the offset is suspended",
        "suspended = state is not None and (type(state) is SuspensionMark or state.began_at < before)",
        "suspended = isinstance(state, SuspensionMark)",
        "test_a_session_is_suspended_where_it_began_before_the_offset_and_not_at_it",
    ),
    Change(
        "a session that began at the offset is not suspended",
        "suspended = state is not None and (type(state) is SuspensionMark or state.began_at < before)",
        "suspended = state is not None and (type(state) is SuspensionMark or state.began_at <= before)",
        "test_a_session_is_suspended_where_it_began_before_the_offset_and_not_at_it",
    ),
    Change(
        "a snapshot before the offset begins no session",
        "if (at_first or envelope.kind in _BEGINS) and record.offset >= before:",
        "if at_first or envelope.kind in _BEGINS:",
        "test_a_snapshot_begins_a_session_from_the_offset_on_and_not_before_it",
    ),
    Change(
        "a session that is suspended again keeps its first lost offset",
        "return msgspec.structs.replace(known, is_broken=broken)",
        "return msgspec.structs.replace(known, since=since, is_broken=broken)",
        "test_a_session_that_is_suspended_again_keeps_its_first_lost_offset",
    ),
    Change(
        "the rest of a broken snapshot begins no session",
        "if known is not None and suspended and not envelope.restarts_sequence and _is_broken(known):",
        "if False:",
        "test_behind_a_broken_snapshot_only_one_that_begins_anew_ends_the_suspension",
    ),
)

BUFFERING = list_mutants(
    "integrity/buffering.py",
    "unit/integrity/test_buffering.py",
    Change(
        "an update that the snapshot covers is stale",
        "if not self._is_after(number, state.number):",
        "if False:",
        "unit/integrity/test_buffering.py",
    ),
    Change(
        "buffered updates that the snapshot covers are stale",
        "stale = [update for update in waiting if not self._is_after(update.number, number)]",
        "stale = list[EarlyUpdate]()",
        "unit/integrity/test_buffering.py",
    ),
)

OPENING = list_mutants(
    "integrity/opening.py",
    "unit/integrity/test_session_start.py",
    Change(
        "an end of an unknown session leaves no state",
        "if envelope.kind is Kind.END and begins.judgement is Judgement.ACCEPT:",
        "if False:",
        "test_an_end_of_an_unknown_session_leaves_no_memory_of_it",
    ),
    Change(
        "a joined log compares no count",
        "counted = envelope if envelope.count is None else msgspec.structs.replace(envelope, count=None)",
        "counted = envelope",
        "unit/integrity/test_joined_log.py",
    ),
)

FLOOR = list_mutants(
    "table/commit.py",
    "unit/table/test_commit.py",
    Change(
        "the rewind floor never sinks",
        "floor = max(batch, base.head.rewind_floor)",
        "floor = batch",
        "test_the_floor_of_rewinding_never_sinks_and_is_that_of_its_generation",
    ),
    Change(
        "the rewind floor is of one generation",
        "if base.head.generation != generation:",
        "if False:",
        "test_the_floor_of_rewinding_never_sinks_and_is_that_of_its_generation",
    ),
    Change(
        "rewinds before the floor are forgotten",
        "rewinds = tuple(each for each in base.head.rewinds if each.batch > floor)",
        "rewinds = base.head.rewinds",
        "features/history/test_rewind.py::test_a_floor_forgets_the_rewinds_before_it",
    ),
    Change(
        "rewinds after the floor are not forgotten",
        "rewinds = tuple(each for each in base.head.rewinds if each.batch > floor)",
        "rewinds = ()",
        "features/history/test_rewind.py::test_a_floor_forgets_the_rewinds_before_it",
    ),
)

HEAD = list_mutants(
    "table/head.py",
    "features/history/test_rewind.py",
    Change(
        "a batch below the floor cannot be rewound to",
        "return self.rewind_floor <= batch <= self.batch or",
        "return batch <= self.batch or",
        "test_a_floor_that_was_raised_meanwhile_refuses_the_rewind",
    ),
    Change(
        "a savepoint below the floor can be rewound to",
        "return self.rewind_floor <= batch <= self.batch or any(each.batch == batch for each in self.savepoints)",
        "return self.rewind_floor <= batch <= self.batch",
        "test_a_savepoint_below_the_floor_can_be_rewound_to_until_it_is_deleted",
    ),
    Change(
        "the batches of another generation count up to its end",
        "return {ended.generation: ended.last_batch for ended in self.lineage} | {self.generation: self.batch}",
        "return {ended.generation: self.batch for ended in self.lineage} | {self.generation: self.batch}",
        "test_a_rewind_is_the_next_batch_of_a_new_generation_and_leaves_the_stream_stopped",
    ),
    Change(
        "versions of rewinds stay loadable",
        "versions = {rewind.batch: rewind.version for rewind in self.rewinds}",
        "versions = dict[int, int]()",
        "features/retention/test_state_gc.py::test_the_state_of_a_batch_to_which_a_rewind_went_back_is_kept_until_the_floor_has_passed_the_rewind",
    ),
    Change(
        "a promotion follows the batch before its first",
        "return self.promotion.first - 1",
        "return self.batch - 1",
        "features/history/test_promotion.py::test_a_promotion_is_the_restored_batch_with_the_rows_of_the_shadow",
    ),
)

HOUSEKEEPING = list_mutants(
    "features/retention/housekeeping.py",
    "features/retention/test_housekeeping.py",
    Change(
        "data files at the floor are kept",
        "needed = (None, floor.batch_version, *head.kept_versions.values())",
        "needed = (None, *head.kept_versions.values())",
        "test_files_that_compaction_replaced_after_the_batch_of_the_floor_stay",
    ),
    Change(
        "data files that a rewind brought back are kept",
        "needed = (None, floor.batch_version, *head.kept_versions.values())",
        "needed = (None, floor.batch_version)",
        "test_files_that_a_rewind_brought_back_stay_until_the_floor_has_passed_it",
    ),
    Change(
        "data files that compaction may still commit are kept",
        "young = max(min(floor_at, time.time()) - OLDEST_FILE_SECONDS,",
        "young = max(min(floor_at, time.time()),",
        "test_data_files_that_compaction_replaced_go_after_the_retention",
    ),
    Change(
        "log entries from the floor on are kept",
        "for batch in (head.rewind_floor, head.full_ledger_batch)]",
        "for batch in (head.batch, head.full_ledger_batch)]",
        "test_the_log_keeps_what_the_retention_needs_and_each_version_of_it_can_be_loaded",
    ),
    Change(
        "a savepoint without a checkpoint keeps its entries",
        "return min(*needed, *unpinned)",
        "return min(*needed, *())",
        "test_a_savepoint_that_gets_no_checkpoint_on_a_full_disk_can_still_be_loaded",
    ),
    Change(
        "files from before an erasure go with it",
        "young = max(min(floor_at, time.time()) - OLDEST_FILE_SECONDS, _find_erasure_time(folders.table, head))",
        "young = min(floor_at, time.time()) - OLDEST_FILE_SECONDS",
        "features/erase/test_erase.py::test_housekeeping_deletes_all_data_files_that_held_the_session",
    ),
)

STATE_GC = list_mutants(
    "features/retention/unreachable_state.py",
    "features/retention/test_state_gc.py",
    Change(
        "the ledger holds the newest batch before state is counted",
        "    side_tables.catch_up_alongside_writer(folders, head)  # 1\n",
        "",
        "test_a_ledger_that_lags_behind_the_head_is_brought_forward_first",
    ),
    Change(
        "the state in force at the floor is kept",
        "for batch in {head.rewind_floor, first, *head.kept_versions} - {0}:",
        "for batch in {first, *head.kept_versions} - {0}:",
        "test_the_state_of_each_batch_from_the_floor_on_can_still_be_read",
    ),
    Change(
        "the state in force at a rewind is kept",
        "for batch in {head.rewind_floor, first, *head.kept_versions} - {0}:",
        "for batch in {head.rewind_floor, first} - {0}:",
        "test_the_state_of_a_batch_to_which_a_rewind_went_back_is_kept_until_the_floor_has_passed_the_rewind",
    ),
    Change(
        "chains are kept whole",
        "named.update(ref.file for ref in header.chain)",
        "named.update(ref.file for ref in header.chain[:1])",
        "test_the_state_of_each_batch_from_the_floor_on_can_still_be_read",
    ),
    Change(
        "a clock that is ahead ends no rewind",
        "now = min(time.time(), _newest_batch_at(folders, head) + CLOCK_AHEAD_SECONDS_MAX)",
        "now = time.time()",
        "test_a_clock_that_is_days_ahead_ends_no_rewind",
    ),
    Change(
        "state of a batch under way is kept",
        "return [path for path in unreachable if _is_over(path.name, head, live)]  # 3",
        "return list(unreachable)  # 3",
        "test_what_may_still_be_committed_stays_and_what_cannot_goes_whatever_the_clocks_show",
    ),
)

WRITTEN_BY = list_mutants(
    "table/written_by.py",
    "unit/table/test_written_by.py",
    Change(
        "files of a newer epoch may be committed",
        "return self.epoch < head.epoch",
        "return True",
        "test_a_file_is_over_when_its_epoch_is_or_its_batch",
    ),
    Change(
        "files of the next batch may be committed",
        "self.batch <= head.batch",
        "self.batch <= head.batch + 1",
        "test_a_file_is_over_when_its_epoch_is_or_its_batch",
    ),
    Change(
        "files of another generation of this epoch are over",
        "self.generation != head.generation or ",
        "",
        "test_a_file_is_over_when_its_epoch_is_or_its_batch",
    ),
)

EARLY_HOURS = list_mutants(
    "features/export/undone.py",
    "features/export/test_early_hours.py",
    Change(
        "an hour that a rewind undid is withdrawn before others are written",
        "if take_back_hour(folder, hour, partial(is_undone, folder, hour, head))",
        "",
        "test_after_rewinds_the_dataset_is_the_table_and_has_no_row_twice",
    ),
    Change(
        "an hour that was published in the moment of a rewind is found by its manifest",
        "judged = {hour for hour in hours if hour >= floor_hour} if is_same else hours",
        "judged = set() if is_same else hours",
        "test_an_undone_hour_of_a_killed_export_is_withdrawn_though_a_newer_export_saw_the_rewind",
    ),
    Change(
        "rows that retention has dropped from the table stay in the dataset",
        "(hour for hour in hours if hour >= dropped)",
        "hours",
        "test_an_hour_whose_rows_retention_has_dropped_stays",
    ),
)

START = list_mutants(
    "table/head.py",
    "features/history/test_rewind.py",
    Change(
        "the messages of an erased session are not read again from the start",
        "return self.erasure is None and self.taken_over is None",
        "return self.taken_over is None",
        "test_the_start_needs_no_files_but_all_messages_and_an_empty_state",
    ),
)

REWIND = list_mutants(
    "features/history/rewind_commit.py",
    "features/history/test_rewind.py",
    Change(
        "a batch that was committed since refuses the rewind",
        "if head.batch != seen.batch:",
        "if False:",
        "test_a_batch_that_lands_first_refuses_the_rewind_by_name",
    ),
    Change(
        "a target whose files may be deleted by now refuses the rewind",
        "    check_rewindable(head, target.batch)\n\n\ndef _make_head",
        "\n\ndef _make_head",
        "test_a_floor_that_was_raised_meanwhile_refuses_the_rewind",
    ),
    Change(
        "a rewind is of the writer for which it was planned",
        "    check_writer(head, Writer(epoch=seen.epoch, generation=seen.generation))\n",
        "",
        "test_of_many_rewinds_at_once_one_wins_and_the_others_change_nothing",
    ),
    Change(
        "a rewind is not committed into a closed hour",
        "        check_hour_open(base.head, planned.commit_hour)\n",
        "",
        "test_a_rewind_into_an_hour_that_was_closed_is_planned_again",
    ),
    Change(
        "the files that a rewind needs are there",
        "        needs=planned.needs,\n    )\n\n\ndef check_unchanged",
        "    )\n\n\ndef check_unchanged",
        "test_a_file_that_is_gone_refuses_the_rewind",
    ),
    Change(
        "a generation ends at the target",
        "lineage=make_lineage(target),\n        epoch=",
        "lineage=make_lineage(head),\n        epoch=",
        "test_a_rewind_forgets_the_generations_that_its_target_did_not_know",
    ),
    Change(
        "retention goes back with a rewind",
        "        retention=target.retention,\n        promotion",
        "        promotion",
        "test_what_retention_dropped_after_the_target_comes_back_with_a_rewind",
    ),
    Change(
        "a promotion goes back with a rewind",
        "        promotion=target.promotion,\n",
        "",
        "test_a_promotion_after_the_target_is_undone_with_a_rewind",
    ),
    Change(
        "a hold outlives a rewind",
        "{head.desired, head.resumes_as if head.desired is Desired.HALTED else None}",
        "{head.resumes_as if head.desired is Desired.HALTED else None}",
        "test_a_hold_outlives_a_rewind",
    ),
    Change(
        "a hold of a halted stream outlives a rewind",
        "{head.desired, head.resumes_as if head.desired is Desired.HALTED else None}",
        "{head.desired}",
        "test_a_hold_of_a_halted_stream_outlives_a_rewind_and_nothing_else_does",
    ),
    Change(
        "a hold that was released does not return",
        "head.resumes_as if head.desired is Desired.HALTED else None",
        "head.resumes_as",
        "test_a_hold_that_was_released_before_a_rewind_does_not_come_back",
    ),
    Change(
        "a rewind is remembered until the floor has passed it",
        "rewinds=(*head.rewinds, Rewind(number, version, target.batch, head.batch, planned.cause)),",
        "rewinds=head.rewinds,",
        "test_a_floor_forgets_the_rewinds_before_it",
    ),
    Change(
        "a savepoint is of a batch that is kept",
        "        check_rewindable(head, savepoint.batch)\n",
        "",
        "test_a_batch_whose_files_may_be_deleted_is_kept_by_no_savepoint",
    ),
    Change(
        "a name is of one savepoint",
        "if any(each.name == savepoint.name for each in head.savepoints):",
        "if False:",
        "test_savepoints_have_names_of_their_own_and_a_limit",
    ),
)

REWIND_PLAN = list_mutants(
    "features/history/rewind.py",
    "features/history/test_rewound_rows.py",
    Change(
        "topics that were taken up since the target keep their first position",
        "for key, row in (*held.items(), *added.items()):",
        "for key, row in held.items():",
        "test_a_topic_that_was_taken_up_since_is_read_again_from_its_first_position",
    ),
    Change(
        "partitions that a known topic got since the target have no position",
        "if key not in held and not _is_judged_again(row, now.get(key), judged_names):",
        "if key not in held:",
        "test_a_partition_that_a_known_topic_got_since_has_no_position_and_its_growth_is_judged_again",
    ),
)

REWOUND_TOPICS = list_mutants(
    "features/history/rewind.py",
    "features/history/test_rewound_topics.py",
    Change(
        "the growth of a topic that was added after the target is judged again",
        "(first.topic in known or first.lifecycle == GROWN)",
        "first.topic in known",
        "test_growth_is_judged_after_any_rewind_as_it_was_at_first_and_an_end_is_not_judged_again",
    ),
    Change(
        "a topic that is gone stays retired",
        " or now[key].is_gone)",
        ")",
        "test_growth_is_judged_after_any_rewind_as_it_was_at_first_and_an_end_is_not_judged_again",
    ),
    Change(
        "a grown partition of a topic that is gone keeps its position",
        " and (now is None or not now.is_gone)",
        "",
        "test_growth_is_judged_after_any_rewind_as_it_was_at_first_and_an_end_is_not_judged_again",
    ),
)

PROMOTION = list_mutants(
    "features/history/promotion_commit.py",
    "features/history/test_promotion.py",
    Change(
        "a base on which somebody has written refuses the promotion",
        "        check_unchanged(base.head, planned.seen, planned.target)\n",
        "",
        "test_of_promotions_and_a_batch_at_once_one_wins",
    ),
    Change(
        "a promotion is not committed into a closed hour",
        "        check_hour_open(base.head, planned.commit_hour)\n",
        "",
        "test_a_promotion_into_an_hour_that_was_closed_is_planned_again",
    ),
    Change(
        "the files that a promotion brings back are there",
        "        needs=planned.needs,\n",
        "",
        "test_a_file_that_is_gone_refuses_the_promotion",
    ),
    Change(
        "retention goes back with a promotion",
        "        retention=target.retention,\n",
        "",
        "test_what_retention_dropped_after_the_target_comes_back_with_a_promotion",
    ),
    Change(
        "a generation ends at the target of a promotion",
        "lineage=make_lineage(target),",
        "lineage=make_lineage(head),",
        "test_a_promotion_is_the_restored_batch_with_the_rows_of_the_shadow",
    ),
    Change(
        "a promotion is remembered as a rewind",
        "rewinds=(*head.rewinds, Rewind(planned.batch, version, target.batch, head.batch, planned.cause)),",
        "rewinds=head.rewinds,",
        "test_a_promotion_is_a_rewind_whose_version_stays_loadable",
    ),
    Change(
        "columns of the shadow are absent up to its first batch",
        "return first if mark is None else first - FIRST_BATCH + int(str(mark))",
        "return first if mark is None else int(str(mark))",
        "test_a_column_that_the_shadow_got_later_is_absent_up_to_that_batch_of_the_stream",
    ),
    Change(
        "the policies of the shadow are numbered as batches of the stream",
        "yield msgspec.structs.replace(each, first_batch=before + each.first_batch)",
        "yield each",
        "test_code_and_policies_of_the_shadow_begin_with_batches_of_the_stream",
    ),
    Change(
        "the code of the shadow is numbered as batches of the stream",
        "return FoldCode(code.digest, head.batch + code.first_batch)",
        "return code",
        "test_code_and_policies_of_the_shadow_begin_with_batches_of_the_stream",
    ),
)

DELTA_PROTOCOL = "unit/table/test_delta_protocol.py"

KINDS = list_mutants(
    "features/retention/commit_kinds.py",
    DELTA_PROTOCOL,
    Change(
        "a removal by retention changes data",
        'event="rows dropped", row_change',
        'event="rows dropped", changes_data=False, row_change',
        "test_each_kind_of_commit_with_files_is_made_and_keeps_the_rules",
    ),
)

RESTORE = list_mutants(
    "table/restore.py",
    DELTA_PROTOCOL,
    Change(
        "a rewind that brings files back removes one",
        "    if back and not gone:",
        "    if False:",
        "test_a_rewind_over_a_retention_is_no_append",
    ),
    Change(
        "a rewind that removes files adds one",
        "    if gone and not (back or planned.adds_more):",
        "    if False:",
        "test_a_rewind_to_no_rows_is_no_deletion",
    ),
)

ERASURE = list_mutants(
    "features/erase/commit.py",
    "features/erase/test_erasure.py",
    Change(
        "a batch that was committed since refuses the erasure",
        "if head.batch != seen.batch or not",
        "if not",
        "test_a_batch_or_a_savepoint_that_comes_first_refuses_the_erasure",
    ),
    Change(
        "a savepoint that was made since refuses the erasure",
        " or not {each.name for each in head.savepoints} <= set(planned.drops):",
        ":",
        "test_a_batch_or_a_savepoint_that_comes_first_refuses_the_erasure "
        "features/erase/test_erase.py::"
        "test_a_savepoint_that_is_made_after_the_plan_keeps_the_session_from_being_erased",
    ),
    Change(
        "an erasure is of the writer for which it was planned",
        "    check_writer(head, Writer(epoch=seen.epoch, generation=seen.generation))\n",
        "",
        "test_another_writer_that_comes_first_fences_the_erasure",
    ),
    Change(
        "an erasure is not committed into a closed hour",
        "    check_hour_open(head, planned.commit_hour)\n",
        "",
        "test_an_erasure_into_an_hour_that_was_closed_is_planned_again",
    ),
    Change(
        "no rewind goes back before an erasure",
        "        rewind_floor=number,\n",
        "",
        "test_an_erasure_is_the_next_batch_and_nothing_before_it_can_be_had_back",
    ),
    Change(
        "no rewind of before an erasure is kept",
        "        rewinds=(),\n",
        "",
        "test_an_erasure_is_the_next_batch_and_nothing_before_it_can_be_had_back",
    ),
    Change(
        "savepoints go with an erasure",
        "        savepoints=(),\n",
        "",
        "test_an_erasure_is_the_next_batch_and_nothing_before_it_can_be_had_back",
    ),
    Change(
        "an erasure is finished by its own side tables",
        "if erasure is None or (erasure.digest, erasure.batch) != (digest, batch):",
        "if erasure is None:",
        "test_an_erasure_is_finished_by_the_one_who_worked_on_it",
    ),
)

SESSION_DIGESTS = list_mutants(
    "table/session_digest.py",
    "features/erase/test_erasure.py",
    Change(
        "a digest is of one table",
        'named = f"{table_id}\\n{session}"',
        'named = f"{session}"',
        "test_a_digest_stands_for_one_session_of_one_table",
    ),
)

DROPPED_SHADOWS = list_mutants(
    "features/history/kept_rows.py",
    "features/erase/test_erase.py",
    Change(
        "deleted shadows go with an erasure",
        "    delete_dropped(folders.root)\n",
        "    pass\n",
        "test_what_a_killed_deletion_of_a_shadow_left_goes_with_the_erasure",
    ),
)

SHOWN_REWIND = list_mutants(
    "features/history/rewind_commit.py",
    "unit/operations/test_shown_plans.py",
    Change(
        "a retention after the plan of a rewind refuses it",
        "    if head.retention != seen.retention:\n",
        "    if False:\n",
        "test_a_change_between_question_and_answer",
    ),
)

SHOWN_RETENTION = list_mutants(
    "features/retention/rows.py",
    "unit/operations/test_shown_plans.py",
    Change(
        "other rows than in the plan are not dropped",
        "            refuse_changed(shown, plan, AGREED)\n",
        "",
        "test_a_retention_that_dropped_rows_meanwhile_is_named",
    ),
)

ERASE = list_mutants(
    "features/erase/erase.py",
    "features/erase/test_erase.py",
    Change(
        "files that a compaction replaced are planned again",
        "if live.missing([file.path for file in prepared.files], base.version):",
        "if False:",
        "test_a_compaction_that_comes_first_makes_it_plan_again_and_one_that_comes_later_loses",
    ),
    Change(
        "an hour that was exported since is planned again",
        "        if has_new_copies(ErasedHours(folders, context.stream, base.head, prepared.plan.hours)):\n"
        "            raise",
        "        if False:\n            raise",
        "test_an_hour_that_is_exported_during_an_erasure_refuses_it",
    ),
    Change(
        "an hour that is exported as the erasure commits is taken back",
        "    withdraw_copies(ErasedHours(folders, context.stream, landed, planned.plan.hours))\n",
        "    pass\n",
        "test_an_hour_that_is_published_as_an_erasure_commits_is_withdrawn",
    ),
    Change(
        "what a check has stored goes with an erasure",
        "    forget_sessions(folders)  # 2\n",
        "",
        "test_what_a_killed_erasure_left_is_finished_by_housekeeping",
    ),
    Change(
        "a file without the session is deleted if the erasure fails",
        "    with delete_on_error(made):\n",
        "    with delete_on_error([]):\n",
        "test_an_erasure_on_a_full_disk_does_not_keep_it_full",
    ),
)

BACKUP = list_mutants(
    "features/copies/backup.py",
    "features/copies/test_backup.py",
    Change(
        "a stream that lacks a file is not copied",
        "    _check_complete(folders, cut, wanted)\n",
        "",
        "test_a_stream_that_lacks_a_file_is_neither_planned_nor_copied",
    ),
    Change(
        "what vanished while it was copied is noticed",
        "        _check_complete(folders, plan.cut, there)\n",
        "",
        "test_a_log_that_is_cleaned_up_while_it_is_copied_is_no_backup",
    ),
    Change(
        "a floor that was raised while it was copied makes another copy",
        "return now.rewind_floor == head.rewind_floor and set",
        "return set",
        "features/retention/test_state_gc.py::test_a_backup_has_the_state_to_which_it_can_be_rewound_though_a_clean_up_deletes_it_meanwhile",
    ),
    Change(
        "a savepoint that was deleted while it was copied makes another copy",
        "now.rewind_floor == head.rewind_floor and set(head.savepoints) <= set(now.savepoints)",
        "now.rewind_floor == head.rewind_floor",
        "features/retention/test_state_gc.py::test_a_backup_has_the_state_to_which_it_can_be_rewound_though_a_clean_up_deletes_it_meanwhile",
    ),
    Change(
        "head and side tables of a moment belong together",
        "if _is_consistent(folders, base.head, ends):",
        "if True:",
        "test_a_moment_is_of_one_batch_whatever_is_committed_while_it_is_chosen",
    ),
    Change(
        "what the folder has is read once it is locked",
        "    with lock_copy(target):  # 1\n        earlier = _read_earlier(folders, target)\n",
        "    with lock_copy(target):  # 1\n",
        "test_of_two_backups_to_one_folder_the_later_one_counts_on_no_file_that_the_earlier_deletes",
        equivalent="a file counts only if the folder has it with its size, and a file of a stream never changes",
    ),
    Change(
        "a file that the folder does not have any more is copied again",
        "if not _is_held(held.get(name), status, copies[name])",
        "if not _is_held(held.get(name), status, status)",
        "test_a_file_that_the_folder_has_lost_is_copied_again",
    ),
    Change(
        "a backup that a newer one replaced is named",
        "        _refuse_newer(source, manifest)\n",
        "",
        "test_a_restore_that_a_backup_overtakes_says_so",
    ),
    Change(
        "a log that cannot be read is not restored",
        "if not delta_log.has_log(table) and table != drafted.late:",
        "if False:",
        "test_a_backup_without_the_log_of_a_table_is_not_restored",
    ),
    Change(
        "a file that has changed is copied again",
        "return (held.size, held.modified_at, held.size) == (here.size, here.modified_at, there.size)",
        "return (held.size, held.size) == (here.size, there.size)",
        "test_a_file_that_has_changed_is_copied_again_though_it_is_as_large",
    ),
    Change(
        "the side files of a head are copied",
        "    needed.update(_list_head_files(folders, head))\n",
        "",
        "test_a_side_file_that_its_table_does_not_hold_yet_is_copied_or_there_is_no_backup",
    ),
)

COPIES = list_mutants(
    "features/copies/copied_files.py",
    "features/copies/test_backup.py",
    Change(
        "a restored file has the digest of its manifest",
        "if (found.size, found.sha256) != (expected.size, expected.sha256):",
        "if found.size != expected.size:",
        "test_a_file_that_has_changed_in_the_folder_is_not_restored",
    ),
    Change(
        "a folder is written by one process",
        "        with storage.lock(folder / LOCK):\n            yield",
        "        yield",
        "test_a_folder_to_which_another_process_writes_is_left_alone",
    ),
)

REQUEST_GUARD = list_mutants(
    "orchestration/request_guard.py",
    "unit/orchestration/test_request_guard.py",
    Change(
        "a foreign host name is refused",
        "if not is_loopback and host not in list_hosts(origins):",
        "if False:",
        "test_no_page_of_another_site_has_anything_changed",
    ),
    Change(
        "a foreign origin is refused",
        "is_own = origin.lower() in own",
        "is_own = True",
        "test_no_page_of_another_site_has_anything_changed",
    ),
    Change(
        "another local port is another site",
        "is_own = origin.lower() in own",
        'is_own = "//127.0.0.1:" in origin or origin in own',
        "test_no_page_of_another_site_has_anything_changed",
    ),
    Change(
        "what a browser calls another site is refused without an origin, too",
        "if site and site not in _OWN_SITES and not _is_followed_link(request):",
        "if False:",
        "test_no_page_of_another_site_has_anything_changed",
    ),
    Change(
        "nothing is asked by GET",
        "if request.is_of_graphql:",
        "if False:",
        "test_no_page_of_another_site_has_anything_changed",
    ),
    Change(
        "a text in which the type is only named is no JSON",
        'if kind != "application/json":',
        "if 'application/json' not in str(request.headers).lower():",
        "test_a_program_that_is_no_browser_asks_by_json_only",
    ),
    Change(
        "a checked header is there once",
        "if name := request.find_repeated():",
        'if name := "":',
        "test_a_header_that_is_there_twice_is_refused",
    ),
)

EXECUTORS = list_mutants(
    "engine/driver/executors.py",
    "unit/engine/test_retries.py",
    Change(
        "the text of a failed task is no cancellation",
        "if _CANCELLED.match(message):",
        "if _CANCELLED.search(message):",
        "test_what_a_failed_task_quotes_is_no_cancellation",
    ),
    Change(
        "a cancelled job is an error of the machine, and blames no message",
        "class JobCancelled(EnvironmentProblem):",
        "class JobCancelled(Exception):",
        "test_jobs_that_somebody_cancels_at_any_time_blame_no_message_and_only_delay_the_search",
    ),
)

QUARANTINE_RETENTION = list_mutants(
    "features/retention/messages.py",
    "features/retention/test_retain_quarantine.py",
    Change(
        "a batch of a kept hour, and all after it, stay",
        "if file.name.hour >= before_hour:",
        "if file.name.hour > before_hour:",
        "test_only_batches_before_the_first_one_of_a_kept_hour_are_old",
    ),
    Change(
        "a file goes as a whole, or no batch of it",
        "bound = min(bound, file.name.first - 1)",
        "pass",
        "test_no_kept_file_has_a_message_of_a_dropped_batch_and_no_more_stay_than_must",
    ),
    Change(
        "a retention does not replace another one that it has not seen",
        "base.head.quarantine_retention != earlier or base.head.generation != seen.generation",
        "False",
        "test_a_retention_or_rewind_before_the_commit_makes_a_new_plan",
    ),
    Change(
        "the tables know what they dropped, if the head has lost it",
        "head.quarantine_dropped_up_to, *removed, 0)",
        "head.quarantine_dropped_up_to, 0)",
        "test_messages_are_dropped_again_in_the_head_whose_entry_a_disk_lost",
    ),
)

FOLLOWERS = list_mutants(
    "operations/followers.py",
    "unit/operations/test_followers.py",
    Change(
        "a follower that read a batch which was undone does not follow",
        "if read.batch > head.valid_batches.get(read.batch_generation, 0):",
        "if False:",
        "test_a_position_is_judged_as_the_tree_of_batches_says",
    ),
    Change(
        "a follower that read before an erasure does not follow",
        "return FollowerStanding.FOLLOWS if read.erasure == erasure else FollowerStanding.ERASED",
        "return FollowerStanding.FOLLOWS",
        "test_a_position_is_judged_as_the_tree_of_batches_says",
    ),
    Change(
        "a follower of another table does not follow",
        "if read.table_id != head.table_id or is_ahead:",
        "if is_ahead:",
        "test_a_position_is_judged_as_the_tree_of_batches_says",
    ),
    Change(
        "undone batches that were read are not batches that are read",
        "min(read.last_complete, head.valid_batches.get(read.batch_generation, 0))",
        "read.last_complete + 1",
        "test_a_position_is_judged_as_the_tree_of_batches_says",
    ),
    Change(
        "a follower is forgotten by a name, not by a path",
        "if not is_name or not forget_position",
        "if not forget_position",
        "test_no_name_leads_to_another_file",
    ),
)

FOLLOWER_PROOF = list_mutants(
    "verify/followers.py",
    "unit/operations/test_followers.py",
    Change(
        "a batch that was undone is not proven",
        "if read.batch and read.batch not in list_batches(head, read.batch_generation):",
        "if False:",
        "test_a_position_is_judged_as_the_tree_of_batches_says",
    ),
    Change(
        "a version that the table does not have is a violation",
        "if read.version > version:",
        "if False:",
        "test_a_claim_beyond_the_table_is_a_violation_and_a_claim_behind_it_is_not",
    ),
    Change(
        "another entry at the claimed version is a violation",
        '(entry.token or "") != read.token',
        "False",
        "test_the_proof_and_the_alarm_agree_on_tables_that_the_library_wrote",
    ),
    Change(
        "an erasure since is not proven",
        "read.erasure < head.erasure.batch",
        "False",
        "test_a_position_is_judged_as_the_tree_of_batches_says",
    ),
)

STORED_ROWS = list_mutants(
    "state/values.py",
    "unit/state/test_layouts.py",
    Change(
        "a row with equal bytes is not written",
        "if find_stored(encoded, _NOTHING) != value:",
        "if True:",
        "test_only_rows_that_differ_are_written",
    ),
    Change(
        "a row that was read is compared if it can be changed in place",
        "self.notes_reads = declared.has_mutable_rows",
        "self.notes_reads = False",
        "test_only_rows_that_differ_are_written",
    ),
    Change(
        "written rows are the stored ones of the next batch",
        "rows |= self._written",
        "rows |= {}",
        "test_rows_that_return_to_an_earlier_value_are_written",
    ),
)
READ_ROWS = list_mutants(
    "state/values.py",
    "unit/state/test_values.py",
    Change(
        "rows that are read count towards the memory of a task",
        "self._reads.bytes += len(key) + size",
        "self._reads.bytes += 0",
        "test_rows_that_are_read_count_towards_the_memory_of_a_task",
    ),
)

SHARED_SPARK = list_mutants(
    "engine/driver/shared_spark.py",
    "unit/engine/test_shared_spark.py",
    Change(
        "one of several streams leaves a core",
        "return max(1, cores - 1) if self.is_shared else cores",
        "return cores",
        "test_one_of_several_streams_leaves_a_core_to_the_others",
    ),
    Change(
        "jobs use the pools in turn",
        "self._turn = (self._turn + 1) % (TURNS * max(1, len(self._unfinished)))",
        "self._turn = 0",
        "test_pools_are_taken_in_turn_and_are_a_few_for_each_stream",
    ),
    Change(
        "an executor of several streams is replaced for two of them only",
        "if not others or recent[name].run_id != run_id",
        "if others or recent[name].run_id != run_id",
        "test_the_executor_of_one_stream_is_replaced_when_it_is_late_twice_lately",
    ),
)

CURRENT = list_mutants(
    "features/current/history.py",
    "features/current/test_refresh.py",
    Change(
        "an erasure makes a current table again",
        "RemakeCause.ERASED: read.erasure != erasure,",
        "RemakeCause.ERASED: False,",
        "test_nothing_of_an_erased_session_is_left_in_files_or_log",
    ),
    Change(
        "undone batches make a current table again",
        "read.batch > head.valid_batches.get(read.batch_generation, 0)",
        "False",
        "test_a_rewind_behind_the_refresh_needs_no_remake_and_one_before_it_does",
    ),
    Change(
        "dropped rows that were not read make a current table again",
        "RemakeCause.EXPIRED: dropped > read.batch,",
        "RemakeCause.EXPIRED: False,",
        "test_rows_that_retention_dropped_stay_also_when_the_table_is_made_again",
    ),
)
CURRENT_ROWS = list_mutants(
    "features/current/changes.py",
    "features/current/test_refresh.py",
    Change(
        "a row before the end of its partition is not a change",
        "is_new[part] = (emitted > end.emit_offset) | ((emitted == end.emit_offset) & (numbers[part] >= end.row))",
        "is_new[part] = True",
        "test_compacted_files_give_no_older_row",
    ),
)
CURRENT_FILES = list_mutants(
    "features/current/refresh.py",
    "features/current/test_refresh.py",
    Change(
        "a refresh commits at the version after the version that it has read",
        "return entry if delta_log.find_top_version(current) == version else None",
        "return msgspec.structs.replace(entry, version=1 + (delta_log.find_top_version(current) or 0))",
        "test_the_loser_of_a_race_leaves_nothing_and_has_the_rows",
    ),
    Change(
        "replaced files stay for readers",
        "removed |= delta_log.read_removed_paths(current, version) or frozenset()",
        "removed |= frozenset()",
        "test_files_that_were_replaced_an_hour_ago_are_deleted_and_younger_ones_are_not",
    ),
)

POSTGRES = (
    *list_mutants(
        "features/delivery/postgres_target.py",
        "features/delivery/test_postgres_delivery.py",
        Change(
            "a write of an earlier claim is fenced",
            "if moved.rowcount != 1:",
            "if moved.rowcount > 1:",
            "test_the_first_of_two_claims_can_write_no_more",
        ),
        Change(
            "a claim of another delivery fences nobody",
            "if delivery != self._delivery:",
            "if False:",
            "test_a_table_of_another_delivery_or_another_key_is_refused_before_it_is_fenced",
        ),
        Change(
            "a session whose write hangs is ended",
            "            self._connection.execute(self._layout.end_writers)\n",
            "",
            "test_a_zombie_with_an_open_transaction_is_ended_and_repeats_nothing",
        ),
        Change(
            "a run that was overtaken does not claim again",
            "return row is not None and row[0] > self._epoch",
            "return row is not None and row[0] > self._epoch + 9",
            "test_a_zombie_with_an_open_transaction_is_ended_and_repeats_nothing",
        ),
        Change(
            "rows keep their number over writes",
            "msgspec.structs.replace(state, number=state.number + rows)",
            "msgspec.structs.replace(state, number=state.number)",
            "test_the_row_of_the_delivery_shows_its_position test_rows_are_appended_once_and_keys_have_their_last_row",
        ),
    ),
    *list_mutants(
        "features/delivery/postgres_layout.py",
        "features/delivery/test_postgres_delivery.py",
        Change(
            "a token that was restored without its rows is refused",
            "elif not self._target.key:\n            query",
            "elif self._target.key:\n            query",
            "test_tokens_that_were_restored_without_their_rows_are_refused",
        ),
        Change(
            "the last row of a key counts",
            "ORDER BY {key}, _number DESC",
            "ORDER BY {key}, _number",
            "test_rows_are_appended_once_and_keys_have_their_last_row",
        ),
        Change(
            "a removal deletes its key",
            'removed = sql.SQL("last.{} IS NULL")',
            'removed = sql.SQL("last.{} IS NULL AND false")',
            "test_rows_are_appended_once_and_keys_have_their_last_row",
        ),
    ),
    *list_mutants(
        "features/delivery/postgres_rows.py",
        "features/delivery/test_postgres_delivery.py",
        Change(
            "an integer of more than 32 bits is no integer of 32 bits",
            "if arrow == pa.int32():\n        return check_int32",
            "if arrow == pa.int64():\n        return check_int32",
            "test_a_value_that_no_column_holds_is_named_by_its_row",
        ),
        Change(
            "a decimal is not rounded",
            "-exponent > self._scale:",
            "-exponent > self._scale + 9:",
            "test_a_value_that_no_column_holds_is_named_by_its_row",
        ),
    ),
    *list_mutants(
        "features/delivery/position.py",
        "features/delivery/test_undone.py",
        Change(
            "after dropped rows were accepted, the delivered rows of the step are known",
            "if token.last is None or token.step_batch <= dropped:",
            "if dropped:",
            "test_in_random_histories_no_row_is_delivered_twice",
        ),
    ),
    *list_mutants(
        "features/delivery/kept_rows.py",
        "features/delivery/test_followers.py",
        Change(
            "retention leaves the rows of a step in progress",
            "complete = read.complete_batch if",
            "complete = read.batch if",
            "test_inside_a_step_retention_and_lag_know_the_batches_that_are_delivered_as_a_whole",
        ),
        Change(
            "batches that count again may be older than an undone position",
            "if judge_standing(read, head) not in HALTS else None",
            "or None",
            "test_retention_holds_rows_behind_an_earlier_or_undone_position",
        ),
    ),
    *list_mutants(
        "features/delivery/undone.py",
        "features/delivery/test_undone.py",
        Change(
            "of two steps of which some rows are delivered, the one with more of them counts",
            "newest = max(counting",
            "newest = min(counting",
            "test_in_random_histories_no_row_is_delivered_twice",
        ),
        Change(
            "undone rows are known until no rewind can return to them",
            "if may_return and last > valid.get(each, 0)",
            "if False",
            "test_batches_that_count_again_are_not_delivered_again",
        ),
        Change(
            "dead letters of deleted rows are forgotten",
            "if each.batch <= valid.get(each.generation, 0))",
            "if each.batch)",
            "test_in_random_histories_no_row_is_delivered_twice",
        ),
    ),
    *list_mutants(
        "features/delivery/claim.py",
        "features/delivery/test_postgres_delivery.py",
        Change(
            "a table with keys takes batch by batch",
            "joins = self._delivery.target.joins_batches",
            "joins = True",
            "test_a_key_of_two_topics_has_the_row_of_the_later_batch",
        ),
    ),
    *list_mutants(
        "features/delivery/claim.py",
        "features/delivery/test_changes.py",
        Change(
            "erased rows are no reason for other missing rows",
            "if found == step.rows - erased:",
            "if found <= step.rows:",
            "test_after_an_erasure_a_step_with_fewer_rows_than_its_ledger_halts",
        ),
    ),
    *list_mutants(
        "features/delivery/deliver.py",
        "features/delivery/test_postgres_delivery.py",
        Change(
            "a target that went back is noticed",
            "if claim < newest:",
            "if claim < newest - 1:",
            "test_a_database_that_was_restored_from_a_backup_is_noticed_and_filled_again",
        ),
    ),
)

HOST = (
    *list_mutants(
        "features/host/keeper.py",
        "features/host/test_hung_threads.py",
        Change(
            "a job that runs is no hang",
            "self._stop.asked_at = now  # the deadline of the batch decides",
            "pass",
            "test_a_thread_hangs_only_without_a_job_and_its_jobs_are_cancelled",
        ),
        Change(
            "a thread that has given a sign lately is not replaced",
            "if now - self._stop.asked_at < seconds or ",
            "if ",
            "test_a_thread_that_has_given_a_sign_lately_is_left_alone",
        ),
        Change(
            "only a few threads of a stream hang",
            " or len(alive) >= HUNG_MAX:",
            ":",
            "test_a_few_hung_threads_of_a_stream_are_replaced_and_end_when_they_return",
        ),
        Change(
            "a stop of the host replaces no thread",
            " or self._context.stopping.wanted.is_set() or len",
            " or len",
            "test_no_thread_is_replaced_after_the_stop_of_the_host",
        ),
        Change(
            "a replaced thread ends when it returns",
            "        self._stop.set()\n        if self.launch",
            "        if self.launch",
            "test_a_few_hung_threads_of_a_stream_are_replaced_and_end_when_they_return",
        ),
        Change(
            "the jobs of a replaced thread are cancelled",
            "            self._context.end_jobs(self.launch.run_id)\n",
            "",
            "test_a_thread_hangs_only_without_a_job_and_its_jobs_are_cancelled",
        ),
    ),
    *list_mutants(
        "features/host/start_policy.py",
        "features/host/test_start_policy.py",
        Change(
            "a host starts no stopped stream",
            "if head.desired is not Desired.RUNNING:",
            "if False:",
            "test_a_host_starts_what_is_to_run_and_only_people_change_the_desired_state",
        ),
        Change(
            "a host changes no desired state",
            "adopts_topics=True, automatic=True)",
            "adopts_topics=True)",
            "test_a_host_starts_what_is_to_run_and_only_people_change_the_desired_state",
        ),
    ),
    *list_mutants(
        "features/host/presence.py",
        "features/host/test_presence.py",
        Change(
            "only a host that started later replaces a host",
            "if host_id not in self._older",
            "if host_id != self._host_id",
            "test_only_a_host_that_started_later_and_counts_is_a_successor",
        ),
    ),
    *list_mutants(
        "features/host/supervision.py",
        "features/host/test_supervision.py",
        Change(
            "a terminated run of a host is not started again",
            "if demand.terminated:  # 3",
            "if False:",
            "test_nothing_starts_that_nobody_wants_and_a_terminated_run_stops_its_streams",
        ),
        Change(
            "failed starts of a host are delayed",
            "if pause_seconds > 0:  # 5",
            "if False:",
            "test_failed_starts_are_delayed_more_each_time_until_a_host_has_lived",
        ),
    ),
    *list_mutants(
        "engine/executor/worker_memory.py",
        "unit/engine/worker_memory_cases.py",
        Change(
            "a task that caught the error of the watch fails",
            "            if self._exceeded:  # Python makes",
            "            if False:  # Python makes",
            "test_a_task_that_passes_the_limit_fails_also_if_it_catches_the_errors",
        ),
        Change(
            "a worker with more than half of the limit ends",
            "if self._exceeded or read_memory_bytes() > limit // 2:",
            "if self._exceeded:",
            "test_a_worker_ends_after_a_task_that_leaves_more_than_half_of_the_limit",
        ),
        Change(
            "no error of the watch reaches the work after the task",
            "            self._task_thread = None\n\n    def _poll",
            "            pass\n\n    def _poll",
            "test_no_error_of_the_watch_reaches_the_work_after_the_task",
        ),
    ),
)

COMMIT_ORDER = [
    *list_mutants(
        "engine/driver/commit_order.py",
        "unit/engine/test_commit_order.py",
        Change(
            "an order ends with the messages of its moment",
            "            self._is_new = False\n            self._wanted",
            "            self._wanted",
            "test_an_order_is_due_until_the_messages_of_its_moment_are_read",
        ),
        Change(
            "a partition without a leader does not keep an order alive",
            "not self._wanted.keys().isdisjoint(ends)",
            "bool(self._wanted)",
            "test_an_order_is_due_until_the_messages_of_its_moment_are_read",
        ),
        Change(
            "an order ends with a log that was truncated",
            "for key, until in narrow_to_ends(self._wanted, ends).items():",
            "for key, until in self._wanted.items():",
            "test_an_order_is_due_until_the_messages_of_its_moment_are_read",
        ),
    ),
    *list_mutants(
        "control/handover.py",
        "unit/control/test_handover.py",
        Change(
            "a writer that ends leaves no order to commit",
            "            forget_commit_request(control, epoch)\n",
            "",
            "test_a_writer_that_ends_leaves_no_request_behind",
        ),
    ),
]

WITHDRAWALS = list_mutants(
    "features/export/publish.py",
    "features/export/test_withdrawals.py",
    Change(
        "of two withdrawals one deletes",
        "            return False\n    return create_owned(staged",
        "            pass\n    return create_owned(staged",
        "test_a_withdrawal_between_any_steps_of_another_leaves_the_later_hour_whole",
    ),
    Change(
        "a withdrawal deletes the publication that it has marked",
        "if file.stem.endswith(find_suffix(name))",
        "if file.name != CLAIM",
        "test_a_withdrawal_that_pauses_until_its_mark_is_old_deletes_no_row_of_a_later_hour",
    ),
    Change(
        "a withdrawal that was killed is finished by the next",
        "not (is_wanted() or is_half_withdrawn(folder, target, last))",
        "not is_wanted()",
        "test_a_withdrawal_that_pauses_until_its_mark_is_old_deletes_no_row_of_a_later_hour",
    ),
)

_REWOUND_TOPICS = "test_growth_is_judged_after_any_rewind_as_it_was_at_first_and_an_end_is_not_judged_again"
ARCHIVE = [
    *list_mutants(
        "features/archive/retention.py",
        "features/archive/test_archive_retention.py",
        Change(
            "messages that a reader needs are not dropped",
            "file.name.last >= unread_from and",
            "False and",
            "test_no_batch_of_a_file_that_stays_is_dropped",
        ),
        Change(
            "a reader holds messages for a limited time",
            " and file.name.hour >= held_from",
            "",
            "test_retention_waits_for_a_reader_no_longer_than_its_time_and_names_it",
        ),
    ),
    *list_mutants(
        "features/archive/readers.py",
        "features/archive/test_archive_retention.py",
        Change(
            "a reader needs the new partitions of its topics",
            "is_read = not end.is_gone if own is None else not own.retired",
            "is_read = own is not None and not own.retired",
            "test_a_reader_needs_the_archived_offsets_after_its_positions",
        ),
        Change(
            "a damaged shadow does not stop the retention of its stream",
            "except TableError as error",
            "except ZeroDivisionError as error",
            "test_a_damaged_shadow_counts_as_a_reader_that_has_read_nothing",
        ),
    ),
    *list_mutants(
        "engine/executor/archive.py",
        "features/archive/test_archive.py",
        Change(
            "archived messages are not archived again after a rewind",
            "    start = max(read.buffer.start, position.next_offset)\n",
            "    start = position.next_offset\n",
            "test_a_rewind_neither_takes_back_nor_repeats_what_is_archived",
        ),
    ),
    *list_mutants(
        "features/history/rewind.py",
        "features/archive/test_archive.py",
        Change(
            "a rewind does not set the archive back",
            "archived_until = archived[key].until if key in archived else None",
            "archived_until = row.archived_until",
            "test_a_rewind_neither_takes_back_nor_repeats_what_is_archived",
        ),
    ),
    *list_mutants(
        "features/history/rewind.py",
        "features/history/test_rewound_topics.py",
        Change(
            "the growth of the next life of a topic is judged after a rewind as it was at first",
            "if key not in now or not now[key].is_gone}",
            "}",
            _REWOUND_TOPICS,
        ),
    ),
    *list_mutants(
        "engine/driver/archived_log.py",
        "features/history/test_rewound_topics.py",
        Change(
            "the archive is read for partitions that have no position since a rewind",
            "wanted = dict.fromkeys(view.ends, 0) | self._reached",
            "wanted = self._reached",
            _REWOUND_TOPICS,
        ),
        Change(
            "a partition that has no position since a rewind is not archived again",
            "plan = with_ranges(plan, self._with_archived_end)",
            "pass",
            _REWOUND_TOPICS,
        ),
    ),
    *list_mutants(
        "table/archive.py",
        "features/archive/test_archive.py",
        Change(
            "a gap ends the readable part of an archive",
            "if last is None or last.until != start:",
            "if last is None:",
            "test_blocks_are_all_ranges_since_the_last_gap",
        ),
        Change(
            "batches before an erasure are not folded again",
            "first = max(_read_last_dropped(folders), erased) + 1",
            "first = _read_last_dropped(folders) + 1",
            "test_an_erased_session_leaves_offsets_without_a_message",
        ),
    ),
]

WEBHOOKS = (
    *list_mutants(
        "features/delivery/webhook_target.py",
        "features/delivery/test_webhook_delivery.py",
        Change(
            "accepted rows are kept with the position of a write that failed",
            """        except LockstepError:
            self._keep_accepted()
            raise""",
            """        except LockstepError:
            raise""",
            "test_a_refused_row_halts_and_accepted_rows_are_not_sent_again",
        ),
        Change(
            "accepted rows are known until they are sent, behind any other rows",
            "self._accepted.difference_update(ids)",
            "self._accepted.clear()",
            "test_accepted_rows_are_not_sent_again_behind_the_rows_of_further_batches",
        ),
        Change(
            "accepted rows that were erased are forgotten at the end of the step",
            "        if rows and token.last is None:",
            "        if not rows and token.last is None and not token.batch:",
            "test_accepted_rows_are_not_sent_again_behind_the_rows_of_further_batches",
        ),
        Change(
            "a pause that the receiver asked for lasts for the next run",
            "        self._require_pause_over()\n\n",
            "\n",
            "test_a_receiver_that_asks_for_a_pause_gets_it_in_the_next_run_too",
        ),
        Change(
            "an overtaken run sends nothing",
            """        self._claim.require_newest()
        answer""",
            "        answer",
            "test_a_newer_claim_fences_an_earlier_one_and_keeps_the_position",
        ),
    ),
    *list_mutants(
        "http_request.py",
        "features/delivery/test_webhook_delivery.py",
        Change(
            "no redirect is followed",
            "build_opener(_NoRedirect, ",
            "build_opener(",
            "test_a_redirect_is_refused_and_no_other_address_gets_a_row",
        ),
        Change(
            "the answer of a proxy to CONNECT is an answer",
            "tunnel = _TUNNEL.match(str(reason))",
            "tunnel = None",
            "test_a_proxy_that_refuses_the_tunnel_refuses_the_run_and_no_row",
        ),
        Change(
            "the time limit ends the connection",
            "        connections.end()\n",
            "",
            "test_a_receiver_that_fails_is_tried_again_and_loses_no_row",
        ),
    ),
)
MUTANTS = (
    *COMMIT_ORDER,
    *WITHDRAWALS,
    *ARCHIVE,
    *COMMIT,
    *LOG,
    *SIDE_TABLES,
    *COMMITTER,
    *PLANNER,
    *BATCH_CHECKS,
    *STRICT,
    *ORDERED,
    *ONCE,
    *FUZZY_WINDOW,
    *MULTIPART,
    *SUSPENSION,
    *BUFFERING,
    *OPENING,
    *FLOOR,
    *HEAD,
    *HOUSEKEEPING,
    *STATE_GC,
    *WRITTEN_BY,
    *EARLY_HOURS,
    *START,
    *REWIND,
    *REWIND_PLAN,
    *REWOUND_TOPICS,
    *PROMOTION,
    *KINDS,
    *RESTORE,
    *ERASURE,
    *SESSION_DIGESTS,
    *DROPPED_SHADOWS,
    *SHOWN_REWIND,
    *SHOWN_RETENTION,
    *ERASE,
    *BACKUP,
    *COPIES,
    *REQUEST_GUARD,
    *EXECUTORS,
    *QUARANTINE_RETENTION,
    *FOLLOWERS,
    *FOLLOWER_PROOF,
    *STORED_ROWS,
    *READ_ROWS,
    *SHARED_SPARK,
    *HOST,
    *CURRENT,
    *POSTGRES,
    *CURRENT_ROWS,
    *CURRENT_FILES,
    *WEBHOOKS,
)
