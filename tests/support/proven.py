"""The results of a proof that found no fault in a table."""

from lockstep.verify.report import InvariantStatus

PROVEN_OR_LOST = {InvariantStatus.PROVEN, InvariantStatus.LOST}
"""For streams whose sessions start without a snapshot: a suspension discards their states."""
