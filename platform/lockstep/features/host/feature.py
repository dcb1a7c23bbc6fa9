"""The feature as the core sees it."""

from __future__ import annotations

from lockstep.feature import Feature

FEATURE = Feature(
    name="host",
    commands=("lockstep.features.host.commands",),
    starters=("lockstep.features.host.start:start_in_host",),
    group_starters=("lockstep.features.host.start:start_group",),
    wiring={
        "HostSupervisor": "lockstep.features.host.sensor:HostSupervisor",
        "make_host_job": "lockstep.features.host.dagster_job:make_host_job",
        "rotate_host": "lockstep.features.host.dagster_job:rotate_host",
    },
)
