"""Decides when Dagster starts a host. Pure: no files, no Dagster, no clock.

As for the run of a single stream (`supervisor_policy`), a counter that has not moved over three polls belongs to a dead
process, although Dagster may show it as started. The host starts its streams; a host is started if none lives and a
stream of the group is to run. A second host does no harm: it takes the streams, and the first host ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.orchestration.sensor_cursor import SensorCursor
from lockstep.orchestration.supervisor_policy import (
    LIVED_SECONDS,
    PAUSE_SECONDS_MAX,
    POLL_SECONDS_MIN,
    HeartbeatObservation,
    SeenRun,
    compute_pause_seconds,
    is_run_dead,
    observe_counter,
)

NAMES_MAX = 5


class HostDemand(msgspec.Struct, frozen=True):
    """Demands of people, as read from tables and Dagster.

    Attributes:
        wanted: Names of the streams that are to run.
        terminated: Id of the newest run of the host, if a person terminated it and its process stopped no stream for
            that; otherwise empty.
    """

    wanted: tuple[str, ...]
    terminated: str = ""


class HostCursor(SensorCursor, frozen=True):
    """State of the sensor between polls. Times are of the machine's monotonic clock, which starts with its boot.

    Attributes:
        boot: Id of the boot: after another boot, or on another machine, these times mean nothing.
        polled_at: Time of the last poll.
        signs: Counters of the hosts, by run.
        lives_since: When a host was first seen to count.
        attempt: Number of starts since a host lived long enough.
        asked_at: Time of the last start.
    """

    boot: str = ""
    polled_at: float = 0.0
    signs: dict[str, HeartbeatObservation] = msgspec.field(default_factory=dict)
    lives_since: float = 0.0
    attempt: int = 0
    asked_at: float = 0.0


class HostDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Actions, new cursor and explanation.

    Attributes:
        cursor: The new cursor.
        explanation: Explanation for display.
        cause: Cause of the run to request; empty for none.
        stop: The run for whose termination the streams are to be stopped; empty for none.
        close: Dead runs that Dagster shows as alive.
        forget: Dead runs whose heartbeat files are left.
    """

    cursor: HostCursor
    explanation: str
    cause: str = ""
    stop: str = ""
    close: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()


def decide_hosting(
    runs: Sequence[SeenRun], cursor: HostCursor, now: float, *, boot: str, read_demand: Callable[[], HostDemand]
) -> HostDecision:
    """Decide what to do for a group.

    1. Count the polls; close dead runs.
    2. Leave a host alone that counts or is on its way.
    3. Without a host: stop the streams if a person terminated its run.
    4. Leave a group alone of which no stream is to run.
    5. Delay a start after failed starts, more each time.
    6. Start.

    Args:
        runs: Unfinished runs of the job of the host, and hosts with a heartbeat file.
        cursor: Cursor of the previous poll.
        now: Monotonic clock of this machine.
        boot: Id of its boot; empty if the system has none.
        read_demand: Reads the demand, only when no host lives: it costs a read of each table.
    """
    seen = _note_runs(runs, cursor, now, boot)  # 1
    dead = [run for run in runs if is_run_dead(run, seen.signs[run.run_id], now)]
    living = [run for run in runs if run not in dead]
    gone = [run for run in dead if not run.process_exists]
    decided = _wait(living, seen) if living else _start_or_stop(seen, now, read_demand())  # 2 to 6
    return msgspec.structs.replace(
        decided,
        close=tuple(run.run_id for run in gone if run.stage.is_held),
        forget=tuple(run.run_id for run in gone if run.counter is not None),
    )


def _wait(living: Sequence[SeenRun], seen: HostCursor) -> HostDecision:
    shown = ", ".join(f"{run.run_id[:8]} ({run.stage.value})" for run in living)
    return HostDecision(cursor=seen, explanation=f"a host lives: run {shown}")


def _start_or_stop(seen: HostCursor, now: float, demand: HostDemand) -> HostDecision:
    if demand.terminated:  # 3
        explanation = f"run {demand.terminated[:8]} was terminated: its streams are stopped"
        return HostDecision(cursor=seen, explanation=explanation, stop=demand.terminated)
    if not demand.wanted:  # 4
        return HostDecision(cursor=seen, explanation="no stream of the group is to run: lockstep start")
    pause_seconds = compute_pause_seconds(seen.attempt) - (now - seen.asked_at)
    if pause_seconds > 0:  # 5
        explanation = f"start {seen.attempt} did not live; the next in {pause_seconds:.0f} s"
        return HostDecision(cursor=seen, explanation=explanation)
    names = ", ".join(demand.wanted[:NAMES_MAX])
    if len(demand.wanted) > NAMES_MAX:
        names += f" and {len(demand.wanted) - NAMES_MAX} more"
    cause = f"supervisor: no host lives, and {names} are to run"
    if seen.attempt:
        cause += f", start {seen.attempt + 1}"
    after = msgspec.structs.replace(seen, attempt=seen.attempt + 1, asked_at=now)  # 6
    return HostDecision(cursor=after, explanation=cause, cause=cause)


def _note_runs(runs: Sequence[SeenRun], before: HostCursor, now: float, boot: str) -> HostCursor:
    """The cursor after this poll. With the clock of another boot, counting restarts."""
    rebooted = boot != before.boot or now < before.polled_at
    signs_before = {} if rebooted else before.signs
    # Two polls in short succession, as of a reload, must not count a host as still.
    counts = rebooted or now - before.polled_at >= POLL_SECONDS_MIN
    signs = dict[str, HeartbeatObservation]()
    for run in runs:
        counter = -1 if run.counter is None else run.counter
        signs[run.run_id] = observe_counter(signs_before.get(run.run_id), counter, now, counts=counts)
    lives = any(sign.moved and not sign.is_still for sign in signs.values())
    lives_since = now
    if lives and not rebooted:
        lives_since = before.lives_since or now
    has_lived = lives and now - lives_since >= LIVED_SECONDS
    return msgspec.structs.replace(
        before,
        boot=boot,
        polled_at=now if counts else before.polled_at,
        signs=signs,
        lives_since=lives_since if lives else 0.0,
        attempt=0 if has_lived else before.attempt,
        asked_at=now - PAUSE_SECONDS_MAX if rebooted else before.asked_at,
    )
