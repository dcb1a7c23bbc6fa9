"""Application ids of the `txn` actions of lockstep's commits (Delta's protocol, "Transaction Identifiers")."""

from __future__ import annotations

BATCH = "lockstep.batch"
"""Number of the batch; in a side table, the batch that the table has been filled up to."""
EPOCH = "lockstep.epoch"
"""Epoch of the writer that claimed the table."""
VERSION = "lockstep.version"
"""Version of the output table that the commit made."""
DROPPED = "lockstep.dropped"
"""In a side table: the last batch whose messages retention has removed from it."""
