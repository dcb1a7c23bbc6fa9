"""The platform's view of a stream's followers on a real broker: alarm, status and proof."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.operations.alarms import AlarmKind
from lockstep.operations.followers import DeclaredFollowers, FollowerStatus, read_followers
from lockstep.operations.inspect.health import read_health
from lockstep.table.follower_positions import FollowerName, FollowerPosition, read_position, write_position
from lockstep.verify.report import FollowerProof, InvariantStatus
from lockstep.verify.verify import verify_stream

if TYPE_CHECKING:
    from lockstep.derived import Derived
    from tests.support.local_runs import LocalRuns

OLD = timedelta(hours=4)
"""Longer than `Objectives.follower_lag`."""


class Killed(BaseException):
    """Ends a process at a step."""


def die(*_: Any, **__: Any) -> None:
    """Raise `Killed`."""
    raise Killed


def require_position(runs: LocalRuns, name: FollowerName) -> FollowerPosition:
    """Return the position of a follower, which must exist."""
    position = read_position(runs.folders.root, name)
    assert position is not None
    return position


def age_last_run(runs: LocalRuns, name: FollowerName) -> None:
    """Move the last run of a follower four hours into the past."""
    position = require_position(runs, name)
    write_position(runs.folders.root, msgspec.structs.replace(position, last_run=position.last_run - OLD))


def list_alarms(runs: LocalRuns) -> list[str]:
    """List the alarms of followers, each with its next step."""
    alarms = [alarm for alarm in read_health(runs.handle).alarms if alarm.kind == AlarmKind.FOLLOWER]
    return [f"{alarm.problem}; next: {alarm.next_step}" for alarm in alarms]


def read_status_of(runs: LocalRuns, *derived: Derived) -> FollowerStatus:
    """Return the status of the only follower of a stream."""
    (status,) = read_followers(DeclaredFollowers((runs.stream,), derived, runs.folders.root))
    return status


def prove_follower(runs: LocalRuns) -> FollowerProof:
    """Return the proof of the only follower of a stream. The stream's table must have no violation."""
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    (proof,) = report.followers
    others = {each.status for each in report.invariants}
    assert InvariantStatus.VIOLATED not in others
    assert (report.status is InvariantStatus.VIOLATED) == (proof.status is InvariantStatus.VIOLATED)
    return proof
