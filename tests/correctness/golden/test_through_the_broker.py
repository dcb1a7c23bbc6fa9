"""Each case has its golden texts through the whole engine, too: a real broker and real Delta tables.

A restart is a new run. A crash is a run whose worker dies after its work. Cases with IDLE need a simulated clock and
are left out.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lockstep import Topics
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.inspect.state import NoSuchSession, StateFilter, read_states
from lockstep.testing import CRASH, RENUMBER, RESTART, Event, Idle, NewTopic, SentMessage
from lockstep.verify.verify import verify_stream
from tests.correctness.golden.cases import CASES, ROWS, STATES, TOPIC, VERDICTS, Case
from tests.support.feed import Feed, ProducerRecord
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import named_files, read_table
from tests.support.proven import PROVEN_OR_LOST

if TYPE_CHECKING:
    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
"""By default the broker refuses timestamps of tomorrow."""
BY_BROKER = [case for case in CASES if not any(isinstance(step, Idle) for step in case.steps)]
SLOW = {
    *("buffered_covered_gap", "buffered_end", "buffered_gap", "buffered_wrap_around"),
    *("first_counted", "first_linked", "first_none", "first_once", "first_window"),
}
"""Other cases of the same class cover the same decisions through the broker."""


@dataclasses.dataclass
class Played:
    """A case that is played through the broker.

    Attributes:
        finding: The violation that ended it, from the error of the run.
    """

    case: Case
    feed: Feed
    runs: LocalRuns
    topic: str = TOPIC
    finding: str | None = None
    waiting: list[SentMessage[Any]] = dataclasses.field(default_factory=list)

    def play(self) -> None:
        """Produce and run up to each event, until the first violation."""
        self.feed.create(self.topic, config=ANY_TIME)
        for step in self.case.steps:
            if isinstance(step, SentMessage):
                self.waiting.append(step)
            elif self.finding is None:
                self._event(step)
        self._run()

    def _event(self, event: Event) -> None:
        self._run(crashes=event is CRASH)
        if event is RESTART:
            shutil.rmtree(self.runs.root / "local", ignore_errors=True)
        elif isinstance(event, NewTopic):
            self.topic = event.name
            self.feed.create(self.topic, config=ANY_TIME)
        elif event is RENUMBER:
            self.feed.delete(f"{self.feed.family}.{self.topic}")
            self.feed.create_again(self.topic)

    def _run(self, *, crashes: bool = False) -> None:
        waits = bool(self.waiting)
        self._produce()
        if self.finding is not None:
            return
        if crashes and waits:
            with pytest.raises(Died):
                self.runs.run(around=dies_after_its_work)
        try:
            self.runs.run()
        except IntegrityLost as lost:
            self.finding = str(lost.findings[0]).replace(f"{self.feed.family}.", "")

    def _produce(self) -> None:
        keys = [sent.key if isinstance(sent.key, bytes) else str(sent.key).encode() for sent in self.waiting]
        records = [
            ProducerRecord(key, sent.value, sent.timestamp_ms) for key, sent in zip(keys, self.waiting, strict=True)
        ]
        self.feed.append(f"{self.feed.family}.{self.topic}", records)
        self.waiting.clear()


class Died(BaseException):
    """The whole run dies: no code of the run catches this and retries."""


def dies_after_its_work(runner: Runner) -> Runner:
    """Run the bins, which write their files, and die before their results are returned."""

    def run_bins(plan: BatchPlan) -> list[TaskResult]:
        runner(plan)
        raise Died

    return run_bins


def rows_in_table(played: Played) -> list[dict[str, object]]:
    names = {"topic": "_topic", "offset": "_offset", "emit_offset": "_emit_offset", "row": "_row"}
    names |= {"session": "_session", "sequence": "_sequence", "what": "what", "level": "level"}
    if not named_files(played.runs.folders.table):
        return []
    table = read_table(played.runs.folders.table)
    prefix = f"{played.feed.family}."
    rows = zip(*(table[column].to_pylist() for column in names.values()), strict=True)
    return [{**dict(zip(names, row, strict=True)), "topic": row[0].removeprefix(prefix)} for row in rows]


def aside_in(folder: Path, where: str, prefix: str) -> list[str]:
    if not named_files(folder):
        return []
    table = read_table(folder)
    columns = ("topic", "offset", "session", "cause", "expected", "found")
    return [
        f"{where}: {topic.removeprefix(prefix)} {offset}  {session}: {cause} (expected {expected}, found {found})"
        for topic, offset, session, cause, expected, found in zip(
            *(table[name].to_pylist() for name in columns), strict=True
        )
    ]


def states_in(played: Played, names: Iterable[str], wanted_states: Mapping[str, object]) -> dict[str, object]:
    """Return the states by name. A re-created topic has the states of two lives: the wanted state is preferred."""
    found: dict[str, object] = {}
    root = played.runs.root / "tables"
    for name in names:
        topic, _, session = name.rpartition(": ")
        wanted = StateFilter(topic=f"{played.feed.family}.{topic or TOPIC}", session=session)
        try:
            held = [each.state for each in read_states(played.runs.stream, root, wanted).sessions]
        except NoSuchSession:
            continue
        if not (lives := [state for state in held if state is not None]):  # its snapshot has not arrived yet
            continue
        found[name] = wanted_states.get(name) if wanted_states.get(name) in lives else lives[-1]
    return found


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=pytest.mark.slow if case.name in SLOW else ()) for case in BY_BROKER],
)
def test_a_case_comes_to_its_golden_texts_through_the_broker(case: Case, feed: Feed, tmp_path: Path) -> None:
    stream = dataclasses.replace(case.stream, topics=Topics(pattern=feed.pattern))
    played = Played(case, feed, LocalRuns(stream, feed.bootstrap_servers, tmp_path))
    played.play()
    expected = case.expected()
    prefix = f"{feed.family}."
    folders = played.runs.folders
    golden = [json.loads(line) for line in expected[ROWS].splitlines()]
    assert [{name: value for name, value in row.items() if name != "second"} for row in golden] == rows_in_table(played)
    lines = expected[VERDICTS].splitlines()
    for where, folder in (("quarantine", folders.quarantine), ("late", folders.late)):
        assert sorted(line for line in lines if line.startswith(where)) == sorted(aside_in(folder, where, prefix))
    states = json.loads(expected[STATES])
    assert states == states_in(played, [*states, *(set("abc") - states.keys())], states)
    halted = [line.removeprefix("halted: ") for line in lines if line.startswith("halted")]
    assert halted == ([played.finding] if played.finding else [])
    assert_proven(played)


def assert_proven(played: Played) -> None:
    """Assert that the second gate of the class reaches the same verdict on every message."""
    found = verify_stream(played.runs.stream, played.runs.folders, played.runs.settings.kafka)
    assert found.violations == ()
    assert found.status in PROVEN_OR_LOST, found.notes
