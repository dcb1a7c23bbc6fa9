"""The public test harness: messages in, rows and verdicts out, without Kafka, Spark or Dagster.

    ran = run(plant, Snapshot(...), Update(...), key="boiler 7")
    assert ran.rows == [Reading(...)]
    assert ran.verdicts == [ACCEPT, ACCEPT]

What runs is the engine's own fold, with the stream's own decoder, gate and columns; only the
reading, the state files and the commit are left out.
"""

from lockstep.integrity.finding import Finding
from lockstep.integrity.verdict import ACCEPT, Judgement, Verdict
from lockstep.testing.messages import Sent
from lockstep.testing.ran import Folded, Ran
from lockstep.testing.run import run

__all__ = ["ACCEPT", "Finding", "Folded", "Judgement", "Ran", "Sent", "Verdict", "run"]
