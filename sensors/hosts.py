"""One sensor per group of `dagster.hosts` of the settings: keeps the host of its streams running."""

from collections.abc import Iterable

from dagster import DefaultSensorStatus, SensorDefinition, SensorEvaluationContext, SensorResult, sensor

from lockstep.dagster import AnyStream, HostSupervisor, Settings, name_host_job, name_host_sensor

POLL_SECONDS = 4
"""The daemon polls every five seconds: a longer interval than this would skip every other poll."""


def host_sensors(streams: Iterable[AnyStream], settings: Settings) -> list[SensorDefinition]:
    """The sensors; none without such groups."""
    declared = tuple(streams)
    return [_host_sensor(group, HostSupervisor(group, declared, settings)) for group in settings.dagster.hosts]


def _host_sensor(group: str, supervisor: HostSupervisor) -> SensorDefinition:
    @sensor(
        name=name_host_sensor(group),
        job_name=name_host_job(group),
        minimum_interval_seconds=POLL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Starts host {group} when none lives and one of its streams is to run.",
    )
    def supervise(context: SensorEvaluationContext) -> SensorResult:
        return supervisor.tick(context)

    return supervise
