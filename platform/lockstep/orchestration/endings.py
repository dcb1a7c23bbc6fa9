"""How a run of a stream ends in Dagster.

| the engine says        | Dagster shows | because                                                      |
|------------------------|---------------|--------------------------------------------------------------|
| ended, handed over     | SUCCESS       | planned                                                      |
| fenced                 | SUCCESS, tag  | somebody else writes; nothing is to be repaired or restarted |
| not wanted any more    | SUCCESS, tag  | the desired state changed before the run of a sensor began   |
| stopped                | CANCELED      | a person asked (FAILURE when no person asked Dagster)        |
| integrity lost, halted | FAILURE, tags | no retry: an operator must look and resume                   |
| any other error        | FAILURE       | may be started again                                         |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from dagster import DagsterExecutionInterruptedError, Failure, MaterializeResult, MetadataValue

from lockstep.engine.loop import Outcome
from lockstep.orchestration.names import OUTCOME_TAG

if TYPE_CHECKING:
    from dagster import AssetExecutionContext
    from dagster._core.definitions.metadata import RawMetadataValue

    from lockstep.errors import LockstepError, StreamHalted
    from lockstep.orchestration.progress import RunProgress

NO_RETRY = {"dagster/max_retries": "0"}
"""The tag by which Dagster's own run retries leave a run alone."""


def ended(
    context: AssetExecutionContext, progress: RunProgress, outcome: Outcome, reason: str, *, never_ending: bool
) -> MaterializeResult[None] | None:
    """End a run that did not end in an error.

    A bounded run materializes the table. One that was to go on for ever leaves that to the check: nothing is new but
    who writes, and a check that passed stays visible.

    Raises:
        DagsterExecutionInterruptedError: It was stopped; Dagster shows it as canceled.
    """
    context.instance.add_run_tags(context.run_id, {OUTCOME_TAG: outcome.value})
    if outcome is not Outcome.STOPPED and not never_ending:
        return MaterializeResult(metadata=progress.final(outcome.value))
    progress.log_final(outcome.value)
    if outcome is not Outcome.STOPPED:
        return None
    raise DagsterExecutionInterruptedError(f"stopped ({reason}); the next start goes on from the last commit")


def halted(context: AssetExecutionContext, error: StreamHalted) -> Failure:
    """The failure of a run that may not be started again before an operator looked."""
    context.instance.add_run_tags(context.run_id, {OUTCOME_TAG: "halted", **NO_RETRY})
    findings = [msgspec.to_builtins(finding) for finding in error.findings]
    metadata: dict[str, RawMetadataValue] = {"findings": MetadataValue.json(findings), "next": error.next_step}
    return Failure(description=str(error), metadata=metadata, allow_retries=False)


def failed(error: LockstepError) -> Failure:
    """The failure of a run that may be started again."""
    return Failure(description=str(error), metadata={"next": error.next_step})
