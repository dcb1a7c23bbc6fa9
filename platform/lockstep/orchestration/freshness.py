"""How old the newest materialization of a stream's assets may be. Dagster's daemon looks every 30 seconds. Pure."""

from __future__ import annotations

from datetime import timedelta

from dagster import FreshnessPolicy

from lockstep.declare.triggers import AvailableNow, Every, FileSize, Trigger

LEDGER_WARN, LEDGER_FAIL = timedelta(minutes=15), timedelta(minutes=30)
"""The topics sensor looks at the ledger every five minutes: two looks may come late or find Kafka silent."""
TABLE_WARN, TABLE_FAIL = timedelta(hours=2, minutes=10), timedelta(hours=4)
"""The table is checked each hour: one check may fail, or wait behind others."""


def ledger_freshness(trigger: Trigger) -> FreshnessPolicy | None:
    """Of the ledger: a batch was committed lately, or nothing waits to be read."""
    return _windows(trigger, LEDGER_WARN, LEDGER_FAIL)


def table_freshness(trigger: Trigger) -> FreshnessPolicy | None:
    """Of the table: a version of it was checked lately, and the ledger was fresh then."""
    return _windows(trigger, TABLE_WARN, TABLE_FAIL)


def ledger_is_fresh(trigger: Trigger, materialized_at: float, now: float) -> bool:
    """Whether the ledger's policy would pass; times in seconds since 1970 (UTC)."""
    return now - materialized_at < (LEDGER_WARN + longest_wait(trigger)).total_seconds()


def longest_wait(trigger: Trigger) -> timedelta:
    """The longest time in which no batch begins although messages wait."""
    if isinstance(trigger, FileSize):
        return trigger.at_most
    return timedelta(seconds=trigger.seconds) if isinstance(trigger, Every) else timedelta()


def _windows(trigger: Trigger, warn: timedelta, fail: timedelta) -> FreshnessPolicy | None:
    """None for a stream that never goes on by itself: it is as fresh as its last run."""
    if isinstance(trigger, AvailableNow):
        return None
    longest = longest_wait(trigger)
    return FreshnessPolicy.time_window(fail_window=fail + longest, warn_window=warn + longest)
