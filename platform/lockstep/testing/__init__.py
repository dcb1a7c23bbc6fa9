"""The public test harness: messages in, rows and verdicts out, without Kafka, Spark or Dagster.

    ran = run(plant, Snapshot(...), Update(...), key="boiler 7")
    assert ran.rows == [Reading(...)]
    assert ran.verdicts == [ACCEPT, ACCEPT]

It runs the engine's own fold, with the stream's own decoder, gate and columns (docs/testing.md).
"""

from lockstep.integrity.verdict import ACCEPT, Judgement, Verdict
from lockstep.model.finding import Finding
from lockstep.testing.result import MessageResult, RejectedMessage, RowWithOrigin, RunResult, choose_rows
from lockstep.testing.run import run
from lockstep.testing.script import (
    CRASH,
    RENUMBER,
    RESTART,
    ChangedLookup,
    Event,
    Idle,
    NewTopic,
    ScriptLine,
    SentMessage,
    Split,
    parse,
    read_messages,
)

__all__ = [
    "ACCEPT",
    "CRASH",
    "RENUMBER",
    "RESTART",
    "ChangedLookup",
    "Event",
    "Finding",
    "Idle",
    "Judgement",
    "MessageResult",
    "NewTopic",
    "RejectedMessage",
    "RowWithOrigin",
    "RunResult",
    "ScriptLine",
    "SentMessage",
    "Split",
    "Verdict",
    "choose_rows",
    "parse",
    "read_messages",
    "run",
]
