"""Keeps the run's view of Kafka: the subscribed topics, audited against the ledger before each batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import msgspec

from lockstep.engine.hands import Hands
from lockstep.errors import KafkaError
from lockstep.integrity.finding import Finding
from lockstep.kafka.audit import Key, Known, audit, doubtful
from lockstep.kafka.discovery import ClusterView

LOG = logging.getLogger("lockstep")

CONFIRM_LOOKS, CONFIRM_SECONDS = 3, 30.0
"""One odd answer of a broker may be stale metadata. A halt is for ever, so it takes three looks."""
FRESH_SECONDS = 0.2
"""A plan made of an older view would leave what came meanwhile to the batch after: one trigger later."""
PATIENCE_SECONDS, RETRY_SECONDS = 120.0, 2.0
"""Bounces of a broker take a minute; a run that waits costs nothing, one that ends must be restarted."""


class KafkaWatch:
    """The run's view of Kafka. The set of topics is fixed: a changed set is a new run."""

    def __init__(self, hands: Hands, known_topics: frozenset[str]) -> None:
        self._hands = hands
        self._names, self._looked_at = known_topics, 0.0
        self._held: dict[Key, int] = {}
        self.view = self._patiently(adding_new=True)
        self._names = known_topics | self.view.topics.keys()

    @property
    def is_fresh(self) -> bool:
        """Whether the view is of this moment, as far as a plan cares."""
        return time.monotonic() - self._looked_at < FRESH_SECONDS

    def look(self) -> ClusterView:
        """Ask Kafka anew.

        Raises:
            KafkaError: No answer for two minutes.
        """
        self.view = self._patiently()
        return self.view

    def compare(self, known: Mapping[Key, Known]) -> frozenset[Key]:
        """Have logs compared whose leader changed since they were read; which are not known to hold what was read.

        One of which no answer came counts as not readable now: it is asked about again with the next look.
        """
        asked = doubtful(known, self.view, self._held)
        if not asked:
            return frozenset()
        answer = self._hands.discovery.compared(asked)
        ends = self.view.ends
        self._held |= {key: epoch for key in answer.holding if (epoch := ends[key].leader_epoch) is not None}
        doubted = asked.keys() - answer.holding
        silent = doubted - answer.cut
        left = {key: each for key, each in ends.items() if key not in silent}
        self.view = msgspec.structs.replace(self.view, ends=left, cut=self.view.cut | answer.cut)
        return frozenset(doubted)

    def confirmed(self, known: Mapping[Key, Known]) -> tuple[Finding, ...]:
        """What is wrong with the view, as far as every further look shows it too."""
        findings = audit(known, self.view)
        for _ in range(CONFIRM_LOOKS - 1):
            if not findings or self._hands.stop.is_set():
                break
            LOG.warning("Kafka looks wrong, looking again: %s", findings[0])
            self._hands.stop.wait(CONFIRM_SECONDS / (CONFIRM_LOOKS - 1))
            self.look()
            self.compare(known)
            again = set(audit(known, self.view))
            findings = tuple(finding for finding in findings if finding in again)
        return findings

    def _patiently(self, *, adding_new: bool = False) -> ClusterView:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._ask(adding_new=adding_new)
            except KafkaError as error:
                if time.monotonic() > deadline or self._hands.stop.is_set():
                    raise
                LOG.warning("%s; trying again", error.problem)
                self._hands.stop.wait(RETRY_SECONDS)

    def _ask(self, *, adding_new: bool) -> ClusterView:
        discovery, topics = self._hands.discovery, self._hands.stream.topics
        new = topics.select(discovery.topic_names()) if adding_new else frozenset[str]()
        self._looked_at = time.monotonic()
        return discovery.view(self._names | new)
