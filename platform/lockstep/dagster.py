"""What definitions.py, jobs and sensors of a project import of lockstep in addition to declarations.

A release keeps these names or names their successors: the files that import them belong to users.
"""

from typing import TYPE_CHECKING

from lockstep.declare.stream import AnyStream
from lockstep.feature import list_features, load_reference
from lockstep.orchestration.definitions import AssetJob, make_assets, make_stream_checks
from lockstep.orchestration.maintenance_schedule import make_maintenance_schedule
from lockstep.orchestration.names import (
    MAINTENANCE,
    NEVER_TOO_LONG,
    STREAM_HEALTH,
    STREAM_SUPERVISOR,
    STREAM_TOPICS,
    list_checks,
    make_derived_key,
    make_part_key,
    make_table_key,
    name_derived_job,
    name_host_job,
    name_host_rotation,
    name_host_sensor,
    name_part_job,
    name_part_schedule,
    name_rotation_schedule,
    name_stream_job,
)
from lockstep.orchestration.pruning_job import make_pruning_job
from lockstep.orchestration.rotation import make_rotation_cron, rotate_stream
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.orchestration.supervisor_sensor import StreamSupervisor
from lockstep.orchestration.topics_sensor import TopicsWatcher
from lockstep.settings import Settings, load_settings

if TYPE_CHECKING:
    from lockstep.features.compaction.asset import request_minor_compaction
    from lockstep.features.health.sensor import HealthWatcher
    from lockstep.features.host.dagster_job import make_host_job, rotate_host
    from lockstep.features.host.sensor import HostSupervisor

__all__ = [
    "MAINTENANCE",
    "NEVER_TOO_LONG",
    "STREAM_HEALTH",
    "STREAM_SUPERVISOR",
    "STREAM_TOPICS",
    "AnyStream",
    "AssetJob",
    "HealthWatcher",
    "HostSupervisor",
    "Settings",
    "SparkResource",
    "StreamSupervisor",
    "TopicsWatcher",
    "list_checks",
    "load_settings",
    "make_assets",
    "make_derived_key",
    "make_host_job",
    "make_maintenance_schedule",
    "make_part_key",
    "make_pruning_job",
    "make_rotation_cron",
    "make_stream_checks",
    "make_table_key",
    "name_derived_job",
    "name_host_job",
    "name_host_rotation",
    "name_host_sensor",
    "name_part_job",
    "name_part_schedule",
    "name_rotation_schedule",
    "name_stream_job",
    "request_minor_compaction",
    "rotate_host",
    "rotate_stream",
]


def __getattr__(name: str) -> object:
    """Import a name that an installed feature adds."""
    for feature in list_features():
        if name in feature.wiring:
            return load_reference(feature.wiring[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
