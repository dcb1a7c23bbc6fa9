"""Decides whether a stream that is to be running must be started. Pure: no files, no Dagster, no clock.

After a kill -9 of a run, of the code server or of the whole machine nobody is left who would start the stream again,
and Dagster may show the dead run as started for ever. So the supervisor looks every few seconds at counters in files:
that of the writer (by epoch) and those of all runs. What has not counted over three looks does not live, whatever
Dagster says; no wall clock decides anything. Being wrong costs a handover, never a row: only the epoch decides who may
write.

It cannot tell a run that Dagster launched and that has shown no sign of life yet from one that died before its first
sign: such a run counts as living for five minutes.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from lockstep.engine.driver.handover import LOOKS, HeartbeatRecord, Phase
from lockstep.table.delta_log import Desired, Head

if TYPE_CHECKING:
    from collections.abc import Mapping


LOOK_SECONDS_MIN = 2.0
"""Looks closer together count as one: a process that does not count for so long is not dead yet."""
LIVED_SECONDS = 60.0
"""A writer that lived so long was started well: the next start after it is not held back."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 10.0, 300.0
"""Each start costs some 20 CPU seconds: a stream that cannot run costs less than a tenth of a core."""
LAUNCH_SECONDS_MAX = 300.0
"""A machine full of other work took four minutes from the launch of a run to its first step (measured)."""
CURSOR_VERSION = 1


class RunStage(Enum):
    """How far Dagster says that a run is."""

    QUEUED = "queued"
    LAUNCHED = "started"
    CANCELING = "being terminated"
    OVER = "over"
    UNKNOWN = "not known to this Dagster"


class SeenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the stream that has not ended, by Dagster or by its liveness file.

    Attributes:
        run_id: Dagster's id of it, or one of its own.
        stage: What Dagster says.
        counter: Of its liveness file; None while there is none.
        process_exists: Its process is known to be there; False also where that cannot be seen.
    """

    run_id: str
    stage: RunStage
    counter: int | None = None
    process_exists: bool = False


class SupervisorLook(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see.

    Attributes:
        head: The head of the table; None while there is none.
        pulse: The last sign of life of the writer of the head's epoch.
        runs: Runs that have not ended.
        last_status: What Dagster says of the run that wrote last; empty when it does not know it.
        terminated: The run that wrote last, or one that was asked for because none wrote, when a person terminated it;
            empty when nobody did.
    """

    head: Head | None
    pulse: HeartbeatRecord | None = None
    runs: tuple[SeenRun, ...] = ()
    last_status: str = ""
    terminated: str = ""


class Sign(msgspec.Struct, frozen=True):
    """A counter over the looks.

    Attributes:
        counter: As it was at the last look; -1 for none.
        looks: At how many looks in a row it was so.
        since: When the first of these was, by the sensor's monotonic clock.
        moved: Whether it was seen to move before that.
    """

    counter: int
    looks: int
    since: float
    moved: bool = False

    @property
    def is_still(self) -> bool:
        """Whether whoever counts there does not live."""
        return self.looks >= LOOKS


class SupervisorCursor(msgspec.Struct, frozen=True):
    """What the sensor remembers between looks. Times are of the monotonic clock of the machine that looks.

    Attributes:
        version: Of this layout.
        looked_at: When the last look was.
        signs: Counters by what they are of.
        lives_since: When the writer of the epoch was first seen to count.
        attempt: How many starts were asked for since a writer lived long enough.
        asked_at: When the last of these was.
    """

    version: int = CURSOR_VERSION
    looked_at: float = 0.0
    signs: dict[str, Sign] = {}
    lives_since: float = 0.0
    attempt: int = 0
    asked_at: float = 0.0

    def last_counter(self, epoch: int) -> int | None:
        """The counter of the writer of an epoch, as the last look saw it."""
        sign = self.signs.get(_epoch_name(epoch))
        return sign.counter if sign is not None else None

    def encode(self) -> str:
        """As sorted JSON."""
        return msgspec.json.encode(self, order="sorted").decode()


class Start(msgspec.Struct, frozen=True):
    """A run to ask for.

    Attributes:
        run_key: Dagster launches each key once, for ever.
        epoch: The epoch that holds the table.
        attempt: Number of the start; with the epoch it names this start for every process that might ask for it.
        cause: Why.
    """

    run_key: str
    epoch: int
    attempt: int
    cause: str


class Stop(msgspec.Struct, frozen=True):
    """A stop to commit.

    Attributes:
        epoch: The epoch that held the table when it was decided.
        reason: Why.
    """

    epoch: int
    reason: str


class SupervisorDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, what to remember, and what to say of it.

    Attributes:
        cursor: To remember.
        says: For people.
        start: The run to ask for.
        stop: Commit that the stream is to stay stopped.
        close: Runs that are dead, while Dagster shows them as alive.
        forget: Runs that are dead, whose liveness files are left.
    """

    cursor: SupervisorCursor
    says: str
    start: Start | None = None
    stop: Stop | None = None
    close: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()


def read_supervisor_cursor(text: str | None) -> tuple[SupervisorCursor, str]:
    """The cursor, and a warning when what was there cannot be read and was reset."""
    if not text:
        return SupervisorCursor(), ""
    try:
        cursor = msgspec.json.decode(text, type=SupervisorCursor)
    except msgspec.DecodeError as error:
        return SupervisorCursor(), f"the cursor cannot be read and is reset: {error}"
    if cursor.version != CURSOR_VERSION:
        return SupervisorCursor(), f"the cursor is of version {cursor.version}, not {CURSOR_VERSION}, and is reset"
    return cursor, ""


def decide_supervision(look: SupervisorLook, cursor: SupervisorCursor, now: float) -> SupervisorDecision:
    """Decide.

    1. Count the looks; close dead runs, whatever the desired state.
    2. A stream that is not to be running, or whose writer counts, is left alone.
    3. A run that is on its way is waited for.
    4. Nobody lives: what a person terminated is stopped.
    5. What failed before is started again later and later.
    6. Start.

    Args:
        look: What there is to see.
        cursor: What the look before left.
        now: The monotonic clock of the machine that looks.
    """
    seen = _counted(look, cursor, now)  # 1
    decided = _start_or_wait(look, seen, now)
    dead = [run for run in look.runs if _is_dead(run, look, seen, now) and not run.process_exists]
    held = {RunStage.LAUNCHED, RunStage.CANCELING}
    return msgspec.structs.replace(
        decided,
        close=tuple(run.run_id for run in dead if run.stage in held),
        forget=tuple(run.run_id for run in dead if run.counter is not None),
    )


def _start_or_wait(look: SupervisorLook, seen: SupervisorCursor, now: float) -> SupervisorDecision:
    head = look.head
    if head is None or head.desired not in {Desired.RUNNING, Desired.BOUNDED}:
        return SupervisorDecision(cursor=seen, says=_left_alone(head))  # 2
    if lives := _writer(look, seen) or _on_its_way(look, seen, now):  # 2, 3
        return SupervisorDecision(cursor=seen, says=f"{head.desired.value}: {lives}")
    if look.terminated:  # 4
        reason = f"terminated in Dagster (run {look.terminated[:8]})"
        return SupervisorDecision(cursor=seen, says=f"stopping: {reason}", stop=Stop(head.epoch, reason))
    if head.desired is Desired.BOUNDED:
        return SupervisorDecision(cursor=seen, says=_left_alone(head))
    left = compute_pause_seconds(seen.attempt) - (now - seen.asked_at)
    if seen.attempt and left > 0:  # 5
        return SupervisorDecision(cursor=seen, says=f"start {seen.attempt} did not live; the next in {left:.0f} s")
    return _start(head, look, seen, now)  # 6


def compute_pause_seconds(attempt: int) -> float:
    """How long after the last start the next one comes, by the number of starts that have not lived."""
    return min(PAUSE_SECONDS * 2.0 ** min(attempt - 1, 16), PAUSE_SECONDS_MAX) if attempt else 0.0


def _start(head: Head, look: SupervisorLook, seen: SupervisorCursor, now: float) -> SupervisorDecision:
    attempt = seen.attempt
    again = f", start {attempt + 1}" if attempt else ""
    cause = f"supervisor: {_gone(head, look)}{again}"
    run_key = f"{head.stream}-{head.table_id[:8]}-{head.epoch}-supervisor-{attempt}"
    return SupervisorDecision(
        cursor=msgspec.structs.replace(seen, attempt=attempt + 1, asked_at=now),
        says=cause,
        start=Start(run_key, head.epoch, attempt, cause),
    )


def _counted(look: SupervisorLook, before: SupervisorCursor, now: float) -> SupervisorCursor:
    """The cursor after this look. A clock that went back is that of another boot: all counting begins again."""
    rebooted = now < before.looked_at
    old: Mapping[str, Sign] = {} if rebooted else before.signs
    counts = rebooted or now - before.looked_at >= LOOK_SECONDS_MIN
    signs = {name: _sign(old.get(name), counter, now, counts=counts) for name, counter in _counters(look).items()}
    writer = signs.get(_writer_name(look))
    lives = writer is not None and writer.moved and not writer.is_still
    lives_since = before.lives_since if lives and _writer_name(look) in old and before.lives_since else now
    lived = lives and now - lives_since >= LIVED_SECONDS
    return msgspec.structs.replace(
        before,
        looked_at=now if counts else before.looked_at,
        signs=signs,
        lives_since=lives_since if lives else 0.0,
        attempt=0 if lived else before.attempt,
        asked_at=now - PAUSE_SECONDS_MAX if rebooted else before.asked_at,
    )


def _sign(before: Sign | None, counter: int, now: float, *, counts: bool) -> Sign:
    if before is None:
        return Sign(counter, 1, now)
    if before.counter != counter:
        return Sign(counter, 1, now, moved=True)
    return msgspec.structs.replace(before, looks=before.looks + 1) if counts else before


def _counters(look: SupervisorLook) -> dict[str, int]:
    runs = {run.run_id: run.counter if run.counter is not None else -1 for run in look.runs}
    return {**runs, _writer_name(look): look.pulse.counter if look.pulse is not None else -1}


def _writer_name(look: SupervisorLook) -> str:
    return _epoch_name(look.head.epoch) if look.head is not None else "no epoch"


def _epoch_name(epoch: int) -> str:
    return f"epoch {epoch}"


def _writer(look: SupervisorLook, seen: SupervisorCursor) -> str:
    """What is known of the writer, while it is not known to be gone; empty when it is."""
    sign = seen.signs[_writer_name(look)]
    if sign.is_still or (look.pulse is not None and look.pulse.phase is Phase.ENDED):
        return ""
    if sign.moved:
        return f"{_writer_name(look)} counts"
    return f"{_writer_name(look)} has not counted over {sign.looks} of {LOOKS} looks"


def _on_its_way(look: SupervisorLook, seen: SupervisorCursor, now: float) -> str:
    """The run that is waited for; empty when there is none."""
    for run in look.runs:
        if not _is_dead(run, look, seen, now) and not _has_ended_writing(run, look):
            return f"run {run.run_id[:8]} is {run.stage.value}, and counts as living"
    return ""


def _is_dead(run: SeenRun, look: SupervisorLook, seen: SupervisorCursor, now: float) -> bool:
    """Whether nothing works for a run any more; never of one that waits in Dagster's queue."""
    if run.stage is RunStage.QUEUED:
        return False
    sign = seen.signs[run.run_id]
    if run.counter is not None:
        return sign.is_still
    written_by_unknown = look.pulse is not None and not look.pulse.run_id and bool(_writer(look, seen))
    return not written_by_unknown and now - sign.since >= LAUNCH_SECONDS_MAX


def _has_ended_writing(run: SeenRun, look: SupervisorLook) -> bool:
    """Whether the run was the writer and has said its last word; its process may take a moment to end."""
    last = look.pulse
    return last is not None and last.phase is Phase.ENDED and last.run_id == run.run_id and run.counter is None


def _gone(head: Head, look: SupervisorLook) -> str:
    """What became of the writer, in words."""
    if look.pulse is None:
        return f"epoch {head.epoch} has no writer"
    run = f" (run {look.pulse.run_id[:8]}: {look.last_status})" if look.last_status else ""
    what = "had ended" if look.pulse.phase is Phase.ENDED else "is gone"
    return f"the writer of epoch {head.epoch} {what}{run}"


def _left_alone(head: Head | None) -> str:
    if head is None:
        return "the stream has no table yet: materialize it once"
    return f"the stream is {head.desired.value} ({head.reason}) and is left alone"
