"""The results of rules as metrics: a violated rule is seen by those who never read a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockstep.features.quality.check import read_last_check
from lockstep.operations.stream_gauges import StreamGauge
from lockstep.table.layout import StreamFolders

NAME: Final = "lockstep_rule_violations"
MEANING: Final = "Violations of a rule that the last check found; label `rule`."


def read_rule_gauges(folders: StreamFolders) -> Iterator[StreamGauge]:
    """Read the violations of each rule, as of the last check; nothing of a rule whose check crashed."""
    last = read_last_check(folders)
    if last is None:
        return
    for result in last.checked.results:
        if result.observed is not None:
            yield StreamGauge(NAME, MEANING, result.observed, {"rule": result.rule})
