"""The public test harness: messages in, rows and verdicts out, without Kafka, Spark or Dagster.

    ran = run(plant, Snapshot(...), Update(...), key="boiler 7")
    assert ran.rows == [Reading(...)]
    assert ran.verdicts == [ACCEPT, ACCEPT]

What runs is the engine's own fold, with the stream's own decoder, gate and columns. `run(..., split=7)` works the
same messages in batches, over real state files and with a crash after each: the result is to be the same.
"""

from lockstep.integrity.verdict import ACCEPT, Judgement, Verdict
from lockstep.model.finding import Finding
from lockstep.testing.result import MessageResult, RejectedMessage, RowWithOrigin, RunResult
from lockstep.testing.run import run
from lockstep.testing.script import (
    CRASH,
    RENUMBER,
    RESTART,
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
    "parse",
    "read_messages",
    "run",
]
