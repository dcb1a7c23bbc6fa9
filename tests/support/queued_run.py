"""A run that waits in Dagster's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import DagsterRun, DagsterRunStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin

if TYPE_CHECKING:
    from dagster import DagsterInstance


def enqueue(instance: DagsterInstance, job: str) -> DagsterRun:
    """Add a run of a job to the queue, with the code location that a queued run requires."""
    code = GrpcServerCodeLocationOrigin(host="localhost", port=1, location_name="lockstep")
    origin = RemoteRepositoryOrigin(code, "__repository__").get_job_origin(job)
    return instance.add_run(DagsterRun(job, status=DagsterRunStatus.QUEUED, remote_job_origin=origin))
