"""The results of a proof that found no fault of a table."""

from lockstep.verify.report import InvariantStatus

PROVEN_OR_LOST = {InvariantStatus.PROVEN, InvariantStatus.LOST}
"""Of streams whose sessions begin without a snapshot: a suspension discards their states."""
