"""Tables of meters with a session erased halfway: windows, timers, snapshots in parts, buffered messages."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING

from lockstep.features.erase.erase import EraseReason, EraseRequest, erase_session, read_context
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.plan_frame import Refused
from tests.correctness.verify.clean_meters import CleanMeters
from tests.support.feed import ProducerRecord
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.erase.erase import SessionErased

SESSION = "a0"
EXCUSED = {EraseReason.NOTHING, EraseReason.HALTED}


class ErasedMeters(CleanMeters):
    """A table from a seed, and a twin that reads the same messages and is not erased."""

    def __init__(self, seed: int, bootstrap_servers: str, root: Path) -> None:
        super().__init__(seed, bootstrap_servers, root)
        self.runs = self._made.runs
        self.told = self._made.told
        twin = dataclasses.replace(self.runs.stream, name="twin")
        self.twin = LocalRuns(twin, bootstrap_servers, root / "twin")
        self.is_halted = False

    def read_more(self, *, without: str | None = None) -> None:
        """Send messages, and run both streams; the producer of the session `without` is stopped."""
        for (topic, partition), each in self._metering.items():
            some = [sent for sent in each.some(self._rng.randrange(20, 60)) if sent.key != without or without is None]
            self._feed.append(topic, [ProducerRecord(sent.key, sent.value) for sent in some], partition)
        for runs in (self.runs, self.twin):
            if not self.is_halted:
                with suppress(IntegrityLost):
                    runs.run()
                    continue
                self.told.append(f"{runs.stream.name} halted")
        self.is_halted = len([each for each in self.told if each.endswith("halted")]) > 0

    def erase(self) -> SessionErased | None:
        """Erase the session, in all topics or in one; return None if it has no data or halted the stream."""
        topic = self._rng.choice(("", *sorted({topic for topic, _ in self._metering})))
        self.told.append(f"erased in {topic or 'all'}")
        request = EraseRequest(session=SESSION, topic=topic, drop_state=True)
        try:
            return erase_session(self.runs.folders, request, read_context(self.runs.handle), who="ann", why="test")
        except Refused as refused:
            if {each.kind for each in refused.obstacles} <= EXCUSED:
                return None
            raise
