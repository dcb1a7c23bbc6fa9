"""Dagster names of the parts of a stream, all defined here: its name and one word more (`lockstep.declare.naming`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import AssetKey

from lockstep.declare.options import AvailableNow
from lockstep.declare.rules import BUILT_IN
from lockstep.feature import list_features_of

if TYPE_CHECKING:
    from lockstep.control.start_request import StartRequest
    from lockstep.declare.derived import Derived
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings


CAUSE_TAG = "lockstep/cause"
"""Cause of a run's start; stored in the ledger."""
AUTOMATIC_TAG = "lockstep/automatic"
"""The sensor that requested a run, or the command that set the desired state before it launched one. Such a run writes
only while the desired state allows it; a run that a person launches sets that state."""
SUPERVISOR = "supervisor"
TOPICS_SENSOR = "topics sensor"
LOCKSTEP_START = "lockstep start"
"""Values of it."""
EPOCH_TAG = "lockstep/replaces_epoch"
"""The epoch that held the table when an automatic run was requested; the run itself gets the next one."""
DESIRED_VERSION_TAG = "lockstep/desired_version"
"""The table version of the last stop, hold or start when a run was requested: a newer stop takes precedence."""
START_REQUEST_TAG = "lockstep/start_request"
"""Id of the request of an operator for which a run was requested: a stream that is not `running` yet."""
USER_TAG = "lockstep/user"
TERMINATED_BY_TAG = "lockstep/terminated_by"
"""Who launched or terminated a run in the web UI, behind the first part of its id; see `request_user`."""
OUTCOME_TAG = "lockstep/outcome"
"""Outcome of a stream's run: `handed over`, `fenced`, `halted`, `lost`, ..."""
INTERRUPTED_TAG = "lockstep/interrupted_run"
"""The id of a run that a signal has stopped, as `make down` sends it. Dagster shows the run as canceled, although no
person has terminated it: its stream is to be started again."""
HEALTH = "health"
"""The check of a table that the health sensor evaluates."""
TOPICS_TAG = "lockstep/topics_added"
"""Topics for which a run was requested."""
NONE = "none"
"""Value of these tags if a re-execution has copied them from its original: Dagster deletes no tag."""
RETRY_NUMBER_TAG = "dagster/retry_number"
PARENT_RUN_TAG = "dagster/parent_run_id"
"""Tags of a run by which Dagster itself retries its parent."""
NEVER_TOO_LONG = {"dagster/max_runtime": "0"}
"""Tags of runs that no `max_runtime_seconds` of the instance may end: it would count as a person's Terminate."""
STREAM_TOPICS = "stream_topics"
STREAM_SUPERVISOR = "stream_supervisor"
STREAM_HEALTH = "stream_health"
"""The sensors; each polls all streams."""
PRUNING_JOB = "dagster_pruning"
"""The single job for all streams that prunes Dagster's storage."""
ROTATION = "daily rotation"
"""The schedule that replaces a never-ending run once a day, as `AUTOMATIC_TAG` names it."""
MAINTENANCE = {"lockstep/work": "maintenance", "dagster/max_runtime": "21600"}
"""Tags of runs of all streams due at the same time; deploy/dagster.yaml limits how many run at once. Dagster does not
notice that the process of one was killed: it holds its slot until the longest time, six hours."""


def make_table_key(stream: AnyStream) -> AssetKey:
    """The asset of the stream's table."""
    return AssetKey([stream.name, "table"])


def make_part_key(stream: AnyStream, part: str) -> AssetKey:
    """The asset that a feature adds to a stream, such as "compaction"."""
    return AssetKey([stream.name, part])


def make_derived_key(derived: Derived) -> AssetKey:
    """The asset of a derived table."""
    return AssetKey([derived.name, "table"])


def make_topics_key(stream: AnyStream) -> AssetKey:
    """The observed asset of the stream's topics."""
    return AssetKey([stream.name, "topics"])


def make_ledger_key(stream: AnyStream) -> AssetKey:
    """The observed asset of the stream's ledger."""
    return AssetKey([stream.name, "ledger"])


def make_topics_partitions(stream: AnyStream) -> str:
    """The set of dynamic partitions, one per topic."""
    return f"{stream.name}_topics"


def name_stream_job(stream: AnyStream) -> str:
    """The job that runs the stream."""
    return f"{stream.name}_stream"


def find_host(stream: AnyStream, settings: Settings) -> str:
    """The group whose run in Dagster runs the stream; empty for a stream that runs alone."""
    group = stream.host_group
    is_hosted = group in settings.dagster.hosts and not isinstance(stream.trigger, AvailableNow)
    return group if group is not None and is_hosted else ""


def name_host_job(group: str) -> str:
    """The job that runs all streams of a group."""
    return f"host_{group}"


def name_host_sensor(group: str) -> str:
    """The sensor that starts the run of that job."""
    return f"host_{group}_supervisor"


def name_host_rotation(group: str) -> str:
    """The schedule that replaces the run of that job."""
    return f"host_{group}_rotation"


def name_part_job(stream: AnyStream, part: str) -> str:
    """The job that a feature adds to a stream, such as "compaction"."""
    return f"{stream.name}_{part}"


def name_part_schedule(stream: AnyStream, part: str) -> str:
    """A schedule that a feature adds to a stream, apart from those of its jobs."""
    return f"{stream.name}_{part}"


def name_derived_job(derived: Derived) -> str:
    """The job that brings a derived table up to its sources."""
    return f"{derived.name}_derive"


def list_checks(stream: AnyStream) -> tuple[str, ...]:
    """The checks of the table's contents, one per rule."""
    return (*BUILT_IN, *(rule.name for rule in stream.rules))


def name_checks_step(stream: AnyStream) -> str:
    """The step of a run that evaluates these checks."""
    return f"{stream.name}_rules"


def make_automatic_tags(asked_by: str, cause: str, epoch: int) -> dict[str, str]:
    """Tags of an automatic run.

    Args:
        asked_by: The sensor or command that requests the run.
        cause: Cause of the start.
        epoch: The epoch that holds the table now.
    """
    return {CAUSE_TAG: cause, AUTOMATIC_TAG: asked_by, EPOCH_TAG: str(epoch)}


def make_start_request_tags(request: StartRequest) -> dict[str, str]:
    """Tags of a run that fulfils a request: its claim sets the desired state, unless a newer stop is in the table."""
    return {
        CAUSE_TAG: request.cause,
        DESIRED_VERSION_TAG: str(request.desired_version),
        START_REQUEST_TAG: request.request_id,
    }


def make_run_configuration(stream: AnyStream, *, available_now: bool) -> dict[str, object]:
    """The configuration of a run of the stream's job."""
    return {"ops": {make_table_key(stream).to_python_identifier(): {"config": {"available_now": available_now}}}}


def list_all_assets(stream: AnyStream) -> tuple[AssetKey, ...]:
    """All assets of the stream."""
    keys = [make_topics_key(stream), make_table_key(stream), make_ledger_key(stream)]
    for feature in list_features_of(stream):
        keys += [make_part_key(stream, part) for part in feature.assets]
    return tuple(keys)


def list_all_jobs(stream: AnyStream) -> tuple[str, ...]:
    """All jobs of the stream."""
    return name_stream_job(stream), *_list_feature_jobs(stream)


def _list_feature_jobs(stream: AnyStream) -> tuple[str, ...]:
    jobs = list[str]()
    for feature in list_features_of(stream):
        jobs += [name_part_job(stream, part) for part in feature.jobs]
    return tuple(jobs)


def list_all_schedules(stream: AnyStream) -> tuple[str, ...]:
    """All schedules of the stream."""
    schedules = [name_rotation_schedule(stream), *map(name_schedule, _list_feature_jobs(stream))]
    for feature in list_features_of(stream):
        schedules += [name_part_schedule(stream, part) for part in feature.schedules]
    return tuple(schedules)


def name_rotation_schedule(stream: AnyStream) -> str:
    """The schedule that replaces the never-ending run."""
    return f"{stream.name}_rotation"


def name_schedule(job: str) -> str:
    """The schedule of a job, by Dagster's default name."""
    return f"{job}_schedule"
