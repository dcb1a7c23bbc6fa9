"""Platform folders with one stream, and calls of the command line in them."""

from __future__ import annotations

import uuid
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lockstep.cli.__main__ import app
from tests.support.adding_stream import adding
from tests.support.feed import Feed, session, update
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result

    from lockstep.declare.stream import AnyStream
    from lockstep.features.localdev.broker import Broker

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Platform:
    """A user's folder: `assets/` with one stream, and settings as environment variables.

    Attributes:
        folder: The folder.
        feed: The producer's side of its stream.
        runs: Runs of the stream in this process.
        environment: Settings, as variables.
    """

    folder: Path
    feed: Feed
    runs: LocalRuns
    environment: dict[str, str] = field(default_factory=dict)

    def call(self, *arguments: str) -> Result:
        """Call the command in this process."""
        with chdir(self.folder):
            return CliRunner().invoke(app, arguments, env=self.environment)


def platform_in(folder: Path, broker: Broker, declare: Callable[[str], AnyStream] = adding) -> Platform:
    """Create a platform with new topics, whose stream has not run yet.

    Args:
        folder: An empty folder.
        broker: The broker.
        declare: A module's function that returns the stream of a pattern.
    """
    family = f"cli_{uuid.uuid4().hex[:8]}"
    feed = Feed(broker.bootstrap_servers, family)
    runs = LocalRuns(declare(feed.pattern), feed.bootstrap_servers, folder)
    (folder / "assets").mkdir()
    (folder / "tables").mkdir()
    # Modules are cached by name for the whole process: each platform needs a new name.
    name = declare.__name__
    source = f'from {declare.__module__} import {name}\n\nstream = {name}(r"{feed.pattern}")\n'
    (folder / "assets" / f"{family}.py").write_text(source)
    environment = {
        "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "LOCKSTEP_TABLE_ROOT": str(folder / "tables"),
        "LOCKSTEP_LOCAL_ROOT": str(folder / "local"),
        "PYTHONPATH": str(ROOT),
    }
    return Platform(folder, feed, runs, environment)


@pytest.fixture
def fresh(broker: Broker, tmp_path: Path) -> Platform:
    """A platform whose stream has not run yet."""
    return platform_in(tmp_path, broker)


@pytest.fixture(scope="session")
def platform(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """A platform whose stream has read five messages and has one unread message. For read-only tests."""
    made = platform_in(tmp_path_factory.mktemp("platform"), broker)
    topic = made.feed.create("values.of.a.topic.with.a.name.that.no.narrow.terminal.shows.in.one.line", partitions=2)
    made.feed.send(topic, session(2), key="a", partition=0)
    made.feed.send(topic, session(1), key="b", partition=1)
    made.runs.run()
    made.feed.send(topic, [update(4, c=1)], key="a", partition=0)
    return made
