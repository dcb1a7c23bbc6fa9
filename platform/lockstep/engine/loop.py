"""The driver's loop: one batch after another, until the trigger ends, a stop, or a newer writer."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from lockstep.declare.triggers import AvailableNow, Every
from lockstep.engine.batches import Batches
from lockstep.engine.hands import Hands
from lockstep.engine.liveness import Heartbeat
from lockstep.engine.start import Claimed
from lockstep.engine.waits import IDLE_SECONDS
from lockstep.engine.wishes import asked_to_stop, commit_stop
from lockstep.errors import Fenced, KafkaError

LOG = logging.getLogger("lockstep")

LOOK_SECONDS = 0.2
"""How soon a stop or a successor's request is seen while waiting; a look costs one stat()."""


class Outcome(Enum):
    """How a run ended, when it did not end in an error."""

    ENDED = "all that was available is committed"
    STOPPED = "stopped"
    STOPPED_FOR_GOOD = "stopped by an operator, until it is started again"
    HANDED_OVER = "handed over"
    FENCED = "fenced"
    NOT_WANTED = "not wanted any more"


def run_batches(hands: Hands, claimed: Claimed) -> Outcome:
    """Work batch after batch.

    1. Audit and plan.
    2. Run the bins, ask Kafka again, commit, report.
    3. Look for a stop and for a successor, until the next batch is due.

    Raises:
        IntegrityLost: The promise cannot be kept; what came before and the halt are committed.
    """
    never_ending = not isinstance(hands.trigger, AvailableNow)
    control, epoch = hands.folders.control, claimed.writer.epoch
    heart = Heartbeat(control, epoch, never_ending=never_ending, run_id=hands.run_id)
    with heart as heartbeat, _thread("side") as helper, _thread("courier") as courier:
        try:
            batches = Batches(hands, claimed, helper, courier)
            outcome = _until_over(batches, hands, claimed, heartbeat)
            batches.end()
        except Fenced as fenced:
            LOG.warning("%s", fenced.problem)
            return Outcome.FENCED
        except KafkaError:
            if not hands.stop.is_set():
                raise
            return Outcome.STOPPED  # asked to stop while Kafka did not answer
        return outcome


def _until_over(batches: Batches, hands: Hands, claimed: Claimed, heartbeat: Heartbeat) -> Outcome:
    while True:
        began, bounded = time.monotonic(), isinstance(hands.trigger, AvailableNow)
        plan = batches.plan()
        if plan is None and bounded and batches.done():
            return Outcome.ENDED
        committed = plan is not None and batches.work(plan)
        # A bounded run has nothing to wait for but what it could not read or commit: a leader, a log that settles.
        at_once = plan is not None and ((bounded and committed) or batches.behind(plan))
        outcome = _look(hands, claimed, heartbeat, began, at_once=at_once)
        if outcome is not None:
            return outcome


def _look(hands: Hands, claimed: Claimed, heartbeat: Heartbeat, began: float, *, at_once: bool) -> Outcome | None:
    """Wait until the next batch is due; say how the run ends if it is to end."""
    pace = hands.trigger.seconds if isinstance(hands.trigger, Every) else IDLE_SECONDS
    due = began if at_once else began + pace
    while True:
        if hands.stop.is_set():
            return Outcome.STOPPED
        if (request := asked_to_stop(hands.folders.control, claimed.writer.epoch)) is not None:
            commit_stop(claimed.output, claimed.writer, request)
            return Outcome.STOPPED_FOR_GOOD
        if heartbeat.asked_to_hand_over():
            return Outcome.HANDED_OVER
        left = due - time.monotonic()
        if left <= 0:
            return None
        hands.stop.wait(min(left, LOOK_SECONDS))


def _thread(name: str) -> ThreadPoolExecutor:
    """A thread beside the loop, which ends with it."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
