"""Waits for a Kafka that does not answer.

Waiting costs a request every few seconds, and loses nothing: the claim, Spark and the state of a run are there when
Kafka returns. A run that ends instead must be started again, for 20 CPU seconds, and again while the outage lasts.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from lockstep.errors import KafkaError, KafkaUnreachable
from lockstep.model.tuning import Tuning

LOG = logging.getLogger("lockstep")
T = TypeVar("T")

STOP_POLL_SECONDS = 0.1
"""Interval of polling for a stop during a pause."""
REPORT_SECONDS_MAX = 60.0
"""Longest time between two lines of the log about one outage."""


class KafkaPatience:
    """Repeats questions without an answer. A never-ending run waits for the end of an outage, a bounded run gives up.

    A refusal, as of a password, is repeated for as long as a bounded run waits: a change of rights may end it.
    """

    def __init__(self, tuning: Tuning, *, is_endless: bool, gives_up: Callable[[], bool]) -> None:
        """Nothing is asked yet.

        Args:
            tuning: Pauses, and the time after which a bounded run stops waiting.
            is_endless: An outage of any length is waited for.
            gives_up: Whether the run is to end: then a question is not repeated.
        """
        self._tuning = tuning
        self._is_endless = is_endless
        self._gives_up = gives_up

    def ask(self, question: Callable[[], T], *, refusal_seconds: float | None = None) -> T:
        """The answer, once there is one.

        Args:
            question: Asks Kafka.
            refusal_seconds: How long a refusal is repeated; by default as long as a bounded run waits.

        Raises:
            KafkaError: A refusal lasts, a bounded run has waited for long enough, or the run is to end.
        """
        outage = _Outage(time.monotonic())
        if refusal_seconds is None:
            refusal_seconds = self._tuning.patience_seconds
        while True:
            try:
                answer = question()
            except KafkaError as error:
                limit = self._find_limit(error, refusal_seconds)
                if outage.seconds >= limit or self._gives_up():
                    raise
                outage.report(error, limit)
                if self._is_over_after_pause(outage):
                    raise
            else:
                outage.report_end()
                return answer

    def _find_limit(self, error: KafkaError, refusal_seconds: float) -> float:
        if not isinstance(error, KafkaUnreachable):
            return refusal_seconds
        return math.inf if self._is_endless else self._tuning.patience_seconds

    def _is_over_after_pause(self, outage: _Outage) -> bool:
        """Pause before the next question, longer after more failures; returns whether the run is to end instead."""
        doubled = self._tuning.retry_seconds * 2.0 ** min(outage.failures - 1, 16)  # bounded: a float would overflow
        deadline = time.monotonic() + min(doubled, self._tuning.retry_seconds_max)
        while not self._gives_up() and (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining, STOP_POLL_SECONDS))
        return self._gives_up()


class _Outage:
    """The failures of one question so far, of which the log tells at growing intervals."""

    def __init__(self, since: float) -> None:
        self.failures = 0
        self._since = since
        self._report_at = 0.0

    @property
    def seconds(self) -> float:
        """Time since the question was first asked."""
        return time.monotonic() - self._since

    def report(self, error: KafkaError, limit: float) -> None:
        """Count a failure."""
        self.failures += 1
        if self.seconds < self._report_at:
            return
        self._report_at = self.seconds + min(max(self.seconds, 1.0), REPORT_SECONDS_MAX)
        until = "until it answers" if limit == math.inf else f"for {limit:.0f} s in all"
        LOG.warning("%s; asking again %s, %.0f s so far", error.problem, until, self.seconds)

    def report_end(self) -> None:
        """The answer is there."""
        if self.failures:
            LOG.warning("Kafka answers again after %.0f s; the run continues", self.seconds)
