"""A deployment in Dagster: the current run is replaced by a run of the release, and back."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from lockstep.operations.inspect.history import read_history
from tests.support.feed import Feed
from tests.support.readings_project import ReadingsProject

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

DAEMON = ("dagster._daemon", "run", "-w", "workspace.yaml")


@pytest.mark.slow
@pytest.mark.timeout(1_500)  # five starts of a run by the daemon
@pytest.mark.broker
def test_a_release_takes_over_and_goes_back_at_batch_boundaries(broker: Broker, tmp_path: Path) -> None:
    project = ReadingsProject(tmp_path / "project", Feed(broker.bootstrap_servers, f"deploy_{uuid.uuid4().hex[:8]}"))
    project.folder.mkdir()
    project.feed.create("house")
    project.call("init", str(project.folder))
    project.write(1)
    with project.run(*DAEMON):
        project.call("start", "readings")
        project.send(5)
        project.write(2)
        project.send(5)
        assert project.read_values() == [1.0] * 10, "an edit reaches no run that lives"
        assert "readings  handed over" in project.call("deploy", "v2")
        project.send(5)
        project.write(3)
        assert "readings  runs this code" in project.call("deploy", "v2", "--back"), "a release never changes"
        project.call("deploy", "v3")
        project.send(5)
        project.call("deploy", "--back")
        project.send(5)
        assert project.read_values() == [1.0] * 10 + [2.0] * 5 + [3.0] * 5 + [2.0] * 5
        causes = [event.detail for event in read_history(project.tables, last=50).events if "(code " in event.detail]
        shown = [cause.rpartition("; ")[2].partition(" (code ")[0] for cause in causes]
        assert shown == ["working folder", "release v2", "release v3", "release v2"]
        assert "release v2" in project.call("status", "readings")
        project.call("stop", "readings")
