"""Intervals, attempts and sizes of a run that are not settings: their defaults fit every installation."""

from __future__ import annotations

import msgspec


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals, attempts and sizes of a run, each with the reason of its default.

    Attributes:
        confirm_looks: Reads of Kafka that must agree. A single odd response may be stale metadata, while a halt is
            permanent.
        confirm_seconds: Duration of these reads before a stream halts.
        move_seconds: Duration of these reads before a position is moved or a topic left out, under a class that
            continues: deleted data stays deleted, and a stream that races with retention must not wait half a minute
            each time.
        described_seconds: Age up to which a description of the topics (ids, partitions, leaders) serves for a plan: it
            is half of what Kafka is asked for a batch, and each batch ends with one before its commit.
        appear_seconds: Interval at which a run that adopts topics polls for new topics; the list of all topics is the
            largest response.
        lifecycle_seconds: Interval at which a run checks for drained topics, and for messages in retired ones: three
            requests for all of them.
        forget_seconds: Time without a retired topic in Kafka after which its position and state are dropped: a deleted
            topic does not return, as one of its name has another id. Far more than a rewind goes back.
        end_seconds_max: Age of the last read of a topic's ends, when the topic is found to be deleted, up to which its
            deletion is an event: three intervals of such reads. Messages after that read are lost unseen.
        end_look_seconds: Age of the last read of all ends at which a run reads them again on a separate thread, for
            example during a long batch. It is less often than with the trigger of 5 seconds.
        patience_seconds: Time without an answer of Kafka, without a leader of an unread partition, or without a message
            of one, after which a bounded run ends; a broker restart takes a minute. A never-ending run waits for the
            end of an outage, and as long as this for a refusal to pass.
        retry_seconds: First pause before the next question to a Kafka that does not answer; it doubles.
        retry_seconds_max: Longest such pause: when Kafka returns, messages wait for no more than a trigger's interval.
        idle_seconds: Pause of a run that waits for something other than time: files to fill, a leader to return. A
            bounded run that has just committed does not pause. A poll of Kafka costs some 10 ms of CPU.
        stuck_seconds_min: Time that a last stable offset may stay unchanged, at least. Transactions of a minute are
            common (it is the client's own limit); shorter ones raise no alarm.
        stuck_triggers: The same, in intervals of the trigger.
        small_batch_messages: Below this, one bin does all: each further file and task costs more than it saves.
        bin_seconds: CPU time of a bin at least: 10,000 messages of a usual fold. Each bin is a file: with one a core,
            400 cores would write 400 files of some kilobytes a commit.
        straggler_seconds_max: Without a message for this long, the unfinished partitions of a task count as unavailable
            in this batch: the others wait to be committed.
        silence_seconds_max: The same for a partition that was unavailable in the last `straggler_batches`: a slow link
            delivers nothing for seconds while it transfers a large message.
        straggler_batches: After so many batches in a row without any message of a partition, it is waited for longer.
        straggler_rest_seconds: Longest pause before such a partition is read again; the pause is ten times as long as
            it was waited for, so that it holds the others up for a tenth of the time at most.
        straggler_task_seconds: Tasks that have not ended this long after the others are cancelled, and their partitions
            planned again: a healthy task of a second that is delayed by that much is rare, and loses its work only.
            Within `straggler_rest_seconds` after that it is waited for three times as long, then nine times: a slow
            task ends all the same.
        explain_attempts: Reads of offsets without a message. Each waits as long as the read of the messages did; a
            restarting broker is back in the second read.
        probed_runs_max: Runs of offsets fetched batch by batch: some milliseconds each. With more of them, most are
            gone anyway.
        executors_seconds_max: Wait for a first executor, or for another executor if none is left. A cluster that has to
            start machines first takes some minutes; a full one never provides any.
        spill_bytes: Buffered rows of a task in memory. Some 400,000 rows of 160 bytes: more than a batch of seconds
            has, less than a worker notices.
        rows_bytes: Rows of a task, in memory and on the local disk: then its ranges end, each with its share. Some
            12 million rows of 160 bytes: many snapshots may emit that much in one batch. One message that emits more
            ends the run. With `FileSize` 64 times the wanted size, if that is more: Parquet is that much smaller.
    """

    confirm_looks: int = 3
    confirm_seconds: float = 30.0
    move_seconds: float = 1.0
    described_seconds: float = 1.0
    appear_seconds: float = 5.0
    lifecycle_seconds: float = 30.0
    forget_seconds: float = 7 * 86_400.0
    end_seconds_max: float = 60.0
    end_look_seconds: float = 20.0
    patience_seconds: float = 120.0
    retry_seconds: float = 2.0
    retry_seconds_max: float = 4.0
    idle_seconds: float = 1.0
    stuck_seconds_min: float = 60.0
    stuck_triggers: int = 3
    small_batch_messages: int = 20_000
    bin_seconds: float = 0.05
    straggler_seconds_max: float = 3.0
    silence_seconds_max: float = 30.0
    straggler_batches: int = 2
    straggler_rest_seconds: float = 300.0
    straggler_task_seconds: float = 10.0
    explain_attempts: int = 2
    probed_runs_max: int = 1_000
    executors_seconds_max: float = 300.0
    spill_bytes: int = 64_000_000
    rows_bytes: int = 2_000_000_000


DEFAULT_TUNING = Tuning()
