"""Decides whether a stream with the desired state `running` must be started. Pure: no files, no Dagster, no clock.

After a kill -9 of a run, of the code server or of the whole machine no process is left to restart the stream,
and Dagster may show the dead run as started forever. So the supervisor reads counters in files every few seconds:
the writer's (by epoch) and those of all runs. A counter that has not moved over three polls belongs to a dead run,
independent of what Dagster shows; no wall clock decides anything. A wrong decision costs a handover, never a row: only
the epoch decides who may write.

A run that Dagster launched and that has no heartbeat yet is shown like a run that died before its first
heartbeat: such a run counts as living for five minutes.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from lockstep.control.heartbeat import POLLS, HeartbeatRecord, Phase
from lockstep.control.start_request import StartRequest
from lockstep.operations.durations import compute_back_off
from lockstep.orchestration.sensor_cursor import SensorCursor
from lockstep.table.head import Desired, Head

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


POLL_SECONDS_MIN = 2.0
"""Polls closer together count as one: a process that does not count for so short a time is not dead yet."""
LIVED_SECONDS = 60.0
"""A writer that lived this long was a successful start: the next one after it is not delayed."""
PAUSE_SECONDS = 10.0
PAUSE_SECONDS_MAX = 300.0
"""Each start costs some 20 CPU seconds: a stream that cannot run costs less than a tenth of a core."""
LAUNCH_SECONDS_MAX = 300.0
"""A machine full of other work took four minutes from the launch of a run to its first step (measured)."""


class RunStage(Enum):
    """Stage of a run in Dagster."""

    QUEUED = "queued"
    LAUNCHED = "started"
    CANCELING = "being terminated"
    OVER = "over"
    UNKNOWN = "not known to this Dagster"

    @property
    def is_held(self) -> bool:
        """Whether Dagster shows a process of it as alive."""
        return self in {RunStage.LAUNCHED, RunStage.CANCELING}


class SeenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the stream that has not ended, by Dagster or by its heartbeat file.

    Attributes:
        run_id: Dagster's id of it, or a separate id.
        stage: Stage in Dagster.
        counter: Counter of its heartbeat file; None without a file.
        process_exists: Its process is known to exist; False also if that cannot be seen.
    """

    run_id: str
    stage: RunStage
    counter: int | None = None
    process_exists: bool = False


class SupervisorObservation(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a decision.

    Attributes:
        head: The head of the table; None while there is none.
        pulse: The last heartbeat of the writer of the head's epoch.
        runs: Runs that have not ended.
        last_status: Dagster's status of the last writer's run; empty when Dagster does not have that run.
        terminated: The last writer's run, a retry of it by Dagster, or one requested because there was none, if a
            person terminated it; otherwise empty.
        terminated_by: That person, if known.
        request: The request of an operator that the stream runs, which no claim has recorded yet.
        host: Group of the run that runs the stream with others; empty for a stream that runs alone.
    """

    head: Head | None
    pulse: HeartbeatRecord | None = None
    runs: tuple[SeenRun, ...] = ()
    last_status: str = ""
    terminated: str = ""
    terminated_by: str = ""
    request: StartRequest | None = None
    host: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether the stream is to run without end."""
        is_running = self.head is not None and self.head.desired is Desired.RUNNING
        return is_running or (self.request is not None and self.request.holds(self.head))

    @property
    def has_written(self) -> bool:
        """Whether the stream has a batch: others wait for its rows."""
        return self.head is not None and self.head.batch > 0


class HeartbeatObservation(msgspec.Struct, frozen=True):
    """A counter over several polls.

    Attributes:
        counter: Value at the last poll; -1 for none.
        looks: Number of consecutive polls with this value.
        since: Time of the first of these, by the sensor's monotonic clock.
        moved: Whether it was seen to move before that.
    """

    counter: int
    looks: int
    since: float
    moved: bool = False

    @property
    def is_still(self) -> bool:
        """Whether the process behind the counter is dead."""
        return self.looks >= POLLS


class SupervisorCursor(SensorCursor, frozen=True):
    """State of the sensor between polls. Times are of the machine's monotonic clock, which starts with its boot.

    Attributes:
        boot: Id of the boot: after another boot, or on another machine, these times mean nothing.
        looked_at: Time of the last poll.
        signs: Counters by their process.
        lives_since: When the writer of the epoch was first seen to count.
        attempt: Number of starts since a writer lived long enough.
        asked_at: Time of the last start.
        starting: Whether a run was on its way at the last poll.
        due: Whether the stream waits for a start, or for the polls that show its writer dead.
        has_written: Whether the stream has a batch: others wait for its rows.
    """

    boot: str = ""
    looked_at: float = 0.0
    signs: dict[str, HeartbeatObservation] = msgspec.field(default_factory=dict)
    lives_since: float = 0.0
    attempt: int = 0
    asked_at: float = 0.0
    starting: bool = False
    due: bool = False
    has_written: bool = False

    def last_counter(self, epoch: int) -> int | None:
        """The writer's counter of an epoch, as of the last poll."""
        sign = self.signs.get(_epoch_name(epoch))
        return sign.counter if sign is not None else None


class Start(msgspec.Struct, frozen=True):
    """A run to request.

    Attributes:
        series: First part of the run keys: stream, table and epoch.
        epoch: The epoch that holds the table.
        attempt: Number of the start; with the epoch it identifies this start for every process that might request it.
        cause: Cause of the start.
        request: The request that it fulfils; None if the desired state is `running`.
    """

    series: str
    epoch: int
    attempt: int
    cause: str
    request: StartRequest | None = None

    @property
    def run_key(self) -> str:
        """Dagster launches each key only once."""
        return f"{self.series}-{self.attempt}"


class Stop(msgspec.Struct, frozen=True):
    """A stop to commit.

    Attributes:
        epoch: The epoch that held the table at the decision.
        reason: Reason of the stop.
    """

    epoch: int
    reason: str


class SupervisorDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Actions, new cursor and explanation.

    Attributes:
        cursor: The new cursor.
        says: Explanation for display.
        start: The run to request.
        stop: Stop to commit.
        withdraws: Whether the request is withdrawn.
        close: Dead runs that Dagster shows as alive.
        forget: Dead runs whose heartbeat files are left.
    """

    cursor: SupervisorCursor
    says: str
    start: Start | None = None
    stop: Stop | None = None
    withdraws: bool = False
    close: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()


def decide_supervision(
    observation: SupervisorObservation,
    cursor: SupervisorCursor,
    now: float,
    *,
    boot: str = "",
    may_start: bool = True,
) -> SupervisorDecision:
    """Decide what to do for a stream.

    1. Count the polls; close dead runs, for every desired state.
    2. Leave a stream alone that is not to run, or whose writer sends heartbeats.
    3. Wait for a run in progress.
    4. Without a live run: stop the stream if a person terminated its run.
    5. Leave a start to the host of the stream; delay it after failed starts, more each time, and while too many other
       streams start.
    6. Start.

    Args:
        observation: Inputs.
        cursor: Cursor of the previous poll.
        now: Monotonic clock of this machine.
        boot: Id of its boot; empty if the system has none.
        may_start: Whether few enough other streams start.
    """
    seen = _counted(observation, cursor, now, boot)  # 1
    decided = _start_or_wait(observation, seen, now, may_start=may_start)  # 2 to 6
    dead = [run for run in observation.runs if _is_dead(run, observation, seen, now) and not run.process_exists]
    return msgspec.structs.replace(
        decided,
        close=tuple(run.run_id for run in dead if run.stage.is_held),
        forget=tuple(run.run_id for run in dead if run.counter is not None),
    )


def _start_or_wait(
    observation: SupervisorObservation, seen: SupervisorCursor, now: float, *, may_start: bool
) -> SupervisorDecision:
    head = observation.head
    if not observation.is_wanted and (head is None or head.desired is not Desired.BOUNDED):
        return SupervisorDecision(cursor=seen, says=_left_alone(head, _on_its_way(observation, seen, now)))  # 2
    writes = _writer(observation, seen)
    comes = _on_its_way(observation, seen, now)
    if writes or comes:  # 2, 3
        is_unseen = bool(writes) and not seen.signs[_writer_name(observation)].moved
        after = msgspec.structs.replace(
            seen,
            starting=not writes,
            due=is_unseen and not comes and observation.is_wanted,
        )
        return SupervisorDecision(cursor=after, says=f"{_name_state(head)}: {writes or comes}")
    if observation.terminated:  # 4
        return _stop(head, observation, seen)
    if not observation.is_wanted:
        return SupervisorDecision(cursor=seen, says=_left_alone(head))
    if (delayed := _delay(observation, seen, now, may_start=may_start)) is not None:  # 5
        return delayed
    return _start(observation, seen, now)  # 6


def _delay(
    observation: SupervisorObservation, seen: SupervisorCursor, now: float, *, may_start: bool
) -> SupervisorDecision | None:
    """The decision to wait with a start; None if it is its turn."""
    if observation.host:
        says = f"{_name_state(observation.head)}: the host {observation.host} starts it"
        return SupervisorDecision(cursor=seen, says=says)
    seconds = compute_pause_seconds(seen.attempt) - (now - seen.asked_at)
    if seconds > 0:
        return SupervisorDecision(cursor=seen, says=f"start {seen.attempt} did not live; the next in {seconds:.0f} s")
    waits = msgspec.structs.replace(seen, due=True)
    if may_start:
        return None
    return SupervisorDecision(cursor=waits, says="waits until fewer other streams start")


def _stop(head: Head | None, observation: SupervisorObservation, seen: SupervisorCursor) -> SupervisorDecision:
    """A person terminated the run: stop the stream, or withdraw the request for it."""
    by = f" by {observation.terminated_by}" if observation.terminated_by else ""
    reason = f"terminated in Dagster{by} (run {observation.terminated[:8]})"
    stop = None
    if head is not None and head.epoch:  # else there is no claim to replace: the request alone is withdrawn
        stop = Stop(head.epoch, reason)
    return SupervisorDecision(
        cursor=seen, says=f"stopping: {reason}", stop=stop, withdraws=observation.request is not None
    )


def _name_state(head: Head | None) -> str:
    return "first start" if head is None else head.desired.value


class StartSlots:
    """Which streams may start: a few at a time, and those that have written before those that never have.

    A start keeps a core busy for some 20 seconds. A stream whose readers wait for rows is not held up by first starts;
    these wait while it is due.
    """

    def __init__(
        self, slots: int, cursors: Mapping[str, SupervisorCursor], boot: str, others: Iterable[str] = ()
    ) -> None:
        """Take the state of the last polls.

        Args:
            slots: Streams that start at the same time.
            cursors: The cursor of each stream.
            boot: Id of the boot: a stream that was not polled since may have written, and be due.
            others: Streams that start for other reasons, such as new topics.
        """
        self._slots = slots
        self._others = frozenset(others)
        # The cursor of another boot tells nothing: until it is polled, a stream may be due.
        unpolled = SupervisorCursor(due=True, has_written=True)
        self._cursors = dict[str, SupervisorCursor]()
        for name, cursor in cursors.items():
            self._cursors[name] = cursor if cursor.boot == boot else unpolled

    def may_start(self, stream: str, *, has_written: bool) -> bool:
        """Whether a slot is free for a stream."""
        ahead = 0
        for name, cursor in self._cursors.items():
            is_starting = cursor.starting or name in self._others
            if name != stream and _goes_first(cursor, has_written=has_written, is_starting=is_starting):
                ahead += 1
        return ahead < self._slots

    def note(self, stream: str, cursor: SupervisorCursor) -> None:
        """Take the result of a poll."""
        self._cursors[stream] = cursor


def _goes_first(other: SupervisorCursor, *, has_written: bool, is_starting: bool) -> bool:
    """Whether another stream holds a slot before one that has written, or has not."""
    if has_written:
        return is_starting and other.has_written
    return is_starting or (other.due and other.has_written)


def compute_pause_seconds(attempt: int) -> float:
    """Delay of the next start after the last start, by the number of starts that have not lived."""
    if attempt:
        return compute_back_off(attempt - 1, PAUSE_SECONDS, PAUSE_SECONDS_MAX)
    return 0.0


def _start(observation: SupervisorObservation, seen: SupervisorCursor, now: float) -> SupervisorDecision:
    head = observation.head
    request = observation.request
    attempt = seen.attempt
    again = f", start {attempt + 1}" if attempt else ""
    if head is None or head.desired is not Desired.RUNNING:
        asked = ""
        wanted_by = ""
        if request is not None:
            asked = request.request_id[:8]
            wanted_by = request.cause
        cause = f"supervisor: first start, wanted by {wanted_by}{again}"
        series = f"request-{asked}"
    else:
        cause = f"supervisor: {_gone(head, observation)}{again}"
        request = None
        series = f"{head.stream}-{head.table_id[:8]}-{head.epoch}"
    epoch = 0 if head is None else head.epoch
    return SupervisorDecision(
        cursor=msgspec.structs.replace(seen, attempt=attempt + 1, asked_at=now, starting=True),
        says=cause,
        start=Start(f"{series}-supervisor", epoch, attempt, cause, request),
    )


def _counted(observation: SupervisorObservation, before: SupervisorCursor, now: float, boot: str) -> SupervisorCursor:
    """The cursor after this poll; with the clock of another boot, even of another machine, counting restarts."""
    # Without an id of boots, a clock that went back shows one.
    rebooted = boot != before.boot or now < before.looked_at
    old: Mapping[str, HeartbeatObservation] = {} if rebooted else before.signs
    # Polls closer together count as one: a counter that stands still for so short a time proves nothing.
    counts = rebooted or now - before.looked_at >= POLL_SECONDS_MIN
    signs = dict[str, HeartbeatObservation]()
    for name, counter in _counters(observation).items():
        signs[name] = observe_counter(old.get(name), counter, now, counts=counts)
    writer = signs.get(_writer_name(observation))
    lives = writer is not None and writer.moved and not writer.is_still
    lives_since = before.lives_since if lives and _writer_name(observation) in old and before.lives_since else now
    lived = lives and now - lives_since >= LIVED_SECONDS
    return msgspec.structs.replace(
        before,
        boot=boot,
        looked_at=now if counts else before.looked_at,
        signs=signs,
        lives_since=lives_since if lives else 0.0,
        attempt=0 if lived else before.attempt,
        asked_at=now - PAUSE_SECONDS_MAX if rebooted else before.asked_at,
        starting=False,
        due=False,
        has_written=observation.has_written,
    )


def observe_counter(
    before: HeartbeatObservation | None, counter: int, now: float, *, counts: bool
) -> HeartbeatObservation:
    """A counter after another poll.

    Args:
        before: The counter at the polls before; None at the first poll.
        counter: The counter now; -1 for none.
        now: Monotonic clock of this machine.
        counts: Whether the last poll is long enough ago for this poll to count.
    """
    if before is None:
        return HeartbeatObservation(counter, 1, now)
    if before.counter != counter:
        return HeartbeatObservation(counter, 1, now, moved=True)
    if counts:
        return msgspec.structs.replace(before, looks=before.looks + 1)
    return before


def _counters(observation: SupervisorObservation) -> dict[str, int]:
    counters = dict[str, int]()
    for run in observation.runs:
        counters[run.run_id] = run.counter if run.counter is not None else -1
    counters[_writer_name(observation)] = observation.pulse.counter if observation.pulse is not None else -1
    return counters


def _writer_name(observation: SupervisorObservation) -> str:
    if observation.head is not None:
        return _epoch_name(observation.head.epoch)
    return "no epoch"


def _epoch_name(epoch: int) -> str:
    return f"epoch {epoch}"


def _writer(observation: SupervisorObservation, seen: SupervisorCursor) -> str:
    """The state of a writer that is not known to be dead; empty otherwise."""
    if observation.head is None or observation.head.epoch == 0:
        return ""  # there never was one
    sign = seen.signs[_writer_name(observation)]
    if sign.is_still or (observation.pulse is not None and observation.pulse.phase is Phase.ENDED):
        return ""
    if sign.moved:
        return f"{_writer_name(observation)} sends heartbeats"
    return f"{_writer_name(observation)} sent no heartbeat in {sign.looks} of {POLLS} polls"


def _on_its_way(observation: SupervisorObservation, seen: SupervisorCursor, now: float) -> str:
    """The run to wait for; empty without one."""
    for run in observation.runs:
        if not _is_dead(run, observation, seen, now) and not _has_ended_writing(run, observation):
            return f"run {run.run_id[:8]} is {run.stage.value}, and counts as living"
    return ""


def _is_dead(run: SeenRun, observation: SupervisorObservation, seen: SupervisorCursor, now: float) -> bool:
    """Whether a run has no live process any more; not known while a writer without the id of its run counts."""
    is_dead = is_run_dead(run, seen.signs[run.run_id], now)
    if run.counter is not None or not is_dead:
        return is_dead
    return observation.pulse is None or bool(observation.pulse.run_id) or not _writer(observation, seen)


def is_run_dead(run: SeenRun, sign: HeartbeatObservation, now: float) -> bool:
    """Whether a run has no live process any more; never for one that waits in Dagster's queue.

    Args:
        run: The run.
        sign: Its counter over the last polls.
        now: Monotonic clock of this machine.
    """
    if run.stage is RunStage.QUEUED:
        return False
    if run.counter is not None:
        return sign.is_still
    return now - sign.since >= LAUNCH_SECONDS_MAX  # it has not written a heartbeat yet


def _has_ended_writing(run: SeenRun, observation: SupervisorObservation) -> bool:
    """Whether the run was the writer and has recorded its end; its process may take a moment to exit."""
    last = observation.pulse
    return last is not None and last.phase is Phase.ENDED and last.run_id == run.run_id and run.counter is None


def _gone(head: Head, observation: SupervisorObservation) -> str:
    """Fate of the writer, for display."""
    if observation.pulse is None:
        return f"epoch {head.epoch} has no writer"
    run = f" (run {observation.pulse.run_id[:8]}: {observation.last_status})" if observation.last_status else ""
    what = "had ended" if observation.pulse.phase is Phase.ENDED else "is gone"
    return f"the writer of epoch {head.epoch} {what}{run}"


def _left_alone(head: Head | None, on_its_way: str = "") -> str:
    """Why nothing is started; a run that a person has launched sets the desired state when it starts to write."""
    if head is None:
        return f"the stream has no table yet: {on_its_way or 'launch its job once, or: lockstep start'}"
    return f"the stream is {head.desired.value} ({head.reason}) and is left alone{on_its_way and '; '}{on_its_way}"
