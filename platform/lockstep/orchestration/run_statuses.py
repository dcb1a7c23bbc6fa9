"""Dagster's statuses of runs, in the groups that are asked for."""

from dagster import DagsterRunStatus

OVER = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
UNFINISHED = [status for status in DagsterRunStatus if status not in OVER]
NOT_WORKING_YET = [DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING]
IN_PROGRESS = [*NOT_WORKING_YET, DagsterRunStatus.STARTED]
"""Without runs that are being terminated."""
