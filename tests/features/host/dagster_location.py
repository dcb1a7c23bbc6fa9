"""A code location with two streams that Dagster runs in one host, set up like a project."""

from __future__ import annotations

import os

from dagster import Definitions, in_process_executor, mem_io_manager

from jobs.hosts import host_jobs, host_schedules
from jobs.streaming import streaming_job
from lockstep.dagster import SparkResource, load_settings, make_assets
from sensors.hosts import host_sensors
from sensors.supervisor import supervisor_sensor
from sensors.topics import topics_sensor
from tests.features.host.hosted import make_stream

FAMILY = "HOSTED_TOPICS"
"""The environment variable with the topics of the streams."""
COUNT = 2
STREAMS = [make_stream(os.environ.get(FAMILY, "none"), number) for number in range(COUNT)]
settings = load_settings()
streaming_jobs = [streaming_job(stream) for stream in STREAMS]

defs = Definitions(
    assets=make_assets(STREAMS, (), settings, owners=()),
    jobs=[*streaming_jobs, *host_jobs(STREAMS, settings)],
    schedules=host_schedules(settings),
    sensors=[
        topics_sensor(STREAMS, streaming_jobs, settings),
        supervisor_sensor(STREAMS, streaming_jobs, settings),
        *host_sensors(STREAMS, settings),
    ],
    resources={"spark": SparkResource(), "io_manager": mem_io_manager},
    executor=in_process_executor,
)
