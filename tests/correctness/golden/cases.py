"""The golden cases: their messages, and their results as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lockstep import Stream
from lockstep.testing import MessageResult, RejectedMessage, RowWithOrigin, RunResult, run
from lockstep.testing.script import Split, Steps, parse
from tests.support.golden_streams import STREAMS, Change, Level, Tank

FOLDER = Path(__file__).parent
TOPIC = "tanks.a"
ROWS = "expected.jsonl"
VERDICTS = "verdicts.txt"
STATES = "states.json"


@dataclass(frozen=True)
class Case:
    """A folder with input.txt, whose first line names the stream, and the expected results."""

    name: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def text(self) -> str:
        return (self.folder / "input.txt").read_text()

    @property
    def stream(self) -> Stream[Change, Tank, Level]:
        return STREAMS[self.text.splitlines()[0].removeprefix("# stream: ")]

    @property
    def steps(self) -> Steps:
        return parse(self.text)

    def ran(self, split: int | Split | None = None) -> RunResult[Tank, Level]:
        return run(self.stream, *self.steps, topic=TOPIC, split=split)

    def expected(self) -> dict[str, str]:
        return {name: (self.folder / name).read_text() for name in (ROWS, VERDICTS, STATES)}

    def write(self, came: dict[str, str]) -> None:
        for name, text in came.items():
            (self.folder / name).write_text(text)


CASES = [Case(path.parent.name) for path in sorted(FOLDER.glob("*/input.txt"))]


def as_text(ran: RunResult[Tank, Level]) -> dict[str, str]:
    """Format the results of a case, by file name."""
    states = {session: msgspec.to_builtins(state) for session, state in sorted(ran.states.items())}
    lines = [_verdict(message) for message in ran.folded]
    lines += [_aside("quarantine", each) for each in ran.quarantine]
    lines += [_aside("late", each) for each in ran.late]
    lines += [f"halted: {ran.finding}"] if ran.finding is not None else []
    return {
        ROWS: "".join(f"{json.dumps(row_parts(each))}\n" for each in ran.proven),
        VERDICTS: "".join(f"{line}\n" for line in lines),
        STATES: json.dumps(states, indent=1) + "\n",
    }


def row_parts(of: RowWithOrigin[Level]) -> dict[str, object]:
    """Return a row with its origin, by name."""
    return {
        "topic": of.topic,
        "offset": of.offset,
        "emit_offset": of.emit_offset,
        "row": of.number,
        "session": of.session,
        "sequence": of.sequence,
        "second": None if of.event_time_us is None else of.event_time_us / 1_000_000,
        **msgspec.to_builtins(of.row),
    }


def _verdict(of: MessageResult[Level]) -> str:
    envelope = of.envelope
    verdict = of.verdict
    what = "no envelope" if envelope is None else f"{envelope.kind.value} {envelope.session} {envelope.sequence}"
    told = f"{of.topic} {of.offset}  {what}: {verdict.judgement.value}"
    told += f", {verdict.cause}" if verdict.cause else ""
    expected_found = f" (expected {verdict.expected}, found {verdict.found})" if verdict.expected else ""
    return told + expected_found


def _aside(where: str, of: RejectedMessage) -> str:
    return f"{where}: {of.topic} {of.offset}  {of.session}: {of.cause} (expected {of.expected}, found {of.found})"
