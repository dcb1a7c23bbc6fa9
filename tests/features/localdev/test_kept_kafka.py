"""A Kafka of `make up` that dies is started again at its address with its topics."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.localdev import keeper as keeper_module
from lockstep.features.localdev.keeper import keep_servers
from lockstep.features.localdev.local_platform import LocalPlatform
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session
from tests.support.installation import ROOT
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_SECONDS = 240.0


# Brokers outlive the objects that started them, as in `make up`.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_kafka_that_is_killed_comes_back_with_its_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "KEEP_SECONDS", 0.1)
    platform = LocalPlatform(ROOT, tmp_path)
    over = threading.Event()
    feed = Feed(platform.start_kafka().bootstrap_servers, "kept")
    topic = feed.create("values")
    feed.send(topic, session(2))
    before = platform.servers()
    keeper = threading.Thread(target=keep_servers, args=(platform, over))
    keeper.start()
    try:
        os.kill(before.started["kafka"].pid, signal.SIGKILL)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while platform.servers().dead() or platform.servers().started["kafka"] == before.started["kafka"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        feed.send(topic, session(3)[3:])
        assert platform.servers().kafka == before.kafka
        runs = LocalRuns(adding(feed.pattern), before.kafka, tmp_path / "runs")
        assert runs.run() is RunOutcome.ENDED
        assert runs.rows(topic) == folded([(at, "s", value) for at, value in enumerate(session(3))])
    finally:
        over.set()
        keeper.join()
        platform.stop()
