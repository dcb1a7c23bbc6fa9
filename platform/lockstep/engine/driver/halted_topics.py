"""Topics that a violation has halted: not read until an operator resumes them, during a run or between runs.

Nothing of a halted topic is skipped: it stays at its position, and its timers do not fire. Its findings are in the
head of the table, so that each later run leaves the topic out as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import msgspec

from lockstep.control.handover import take_resume_request
from lockstep.engine.driver.planner import make_batch_identity
from lockstep.engine.driver.resumption import PositionMismatch, ResumeDecision, make_accepted_rows
from lockstep.integrity.resume_options import BURST, IntegrityLost, decode_options, find_unanswered
from lockstep.model.position import TopicIdPartition
from lockstep.table.commit import BatchCommit, HourClosed
from lockstep.table.head import Resumption
from lockstep.table.ledger import read_positions

if TYPE_CHECKING:
    from lockstep.control.handover import ResumeRequest
    from lockstep.engine.driver.committer import Committer
    from lockstep.engine.driver.context import RunContext
    from lockstep.engine.driver.startup import WriterClaim
    from lockstep.engine.driver.subscription import Subscription
    from lockstep.model.finding import Finding
    from lockstep.model.position import Position
    from lockstep.table.commit import Writer

LOG = logging.getLogger("lockstep")

FINDINGS_MAX = 100
"""The head has them, which each commit repeats: some 100 kB with so many. More of them have one cause, of no topic."""


class TopicsHalted(IntegrityLost):
    """A bounded run has read all but the halted topics of its stream."""

    STATE: ClassVar[str] = "has halted topics; all others are read"


class HaltedTopics:
    """The halted topics of a run."""

    def __init__(self, context: RunContext, writer: Writer, committer: Committer) -> None:
        """Takes them from the head.

        Args:
            context: Dependencies of the run.
            writer: The writer.
            committer: Commits, and has the head.
        """
        self._context = context
        self._writer = writer
        self._committer = committer

    @property
    def names(self) -> frozenset[str]:
        """Names of the topics."""
        return frozenset(topic.topic for topic in self._committer.head.halted_topics)

    def leave_out(self, positions: Mapping[TopicIdPartition, Position]) -> Mapping[TopicIdPartition, Position]:
        """The positions of topics that are not halted."""
        if not self._committer.head.halted_topics:
            return positions
        halted = {topic.topic_id for topic in self._committer.head.halted_topics}
        return {key: position for key, position in positions.items() if key.topic_id not in halted}

    def is_known(self, finding: Finding) -> bool:
        """Whether a topic is halted for the same cause at the same place already."""
        return any(_place(finding) == _place(known) for known in self._committer.head.all_findings)

    def contain(self, batch: BatchCommit) -> BatchCommit:
        """The batch, which halts the topics of its findings and not the stream, if the class halts topics.

        A quarantine burst is of no topic: a decoder or a transform has failed. Nor are violations of very many.
        """
        is_burst = any(finding.cause == BURST for finding in batch.findings)
        are_many = len(self._committer.head.all_findings) + len(batch.findings) > FINDINGS_MAX
        if is_burst or are_many or not self._context.stream.integrity.halts_topics:
            return batch
        return msgspec.structs.replace(batch, findings=(), topic_findings=batch.findings)

    def report(self, batch: BatchCommit) -> None:
        """Tell the log of topics that a batch has halted."""
        for finding in batch.topic_findings:
            LOG.error("topic %s is halted, all others are read on: %s", finding.topic, finding.without_session())

    def resume_if_asked(self, partitions: Subscription) -> bool:
        """Commit an operator's resumption of halted topics, if one was asked for; returns whether positions changed."""
        if not self._committer.head.halted_topics or partitions.is_unsaved:
            return False
        request = take_resume_request(self._context.folders.control, self._writer.epoch)
        if request is None:
            return False
        decision = self._read_decision(request)
        if decision is None:
            LOG.warning("halted topics are not resumed: the request of %s does not fit their findings", request.who)
            return False
        try:
            self._resume(decision)
        except PositionMismatch as error:
            LOG.warning("halted topics are not resumed: %s", error.problem)
            return False
        return True

    def _read_decision(self, request: ResumeRequest) -> ResumeDecision | None:
        """The decision of a request; None if it does not fit.

        The command has checked it, but another resumption may have been first, or a topic been halted again since.
        """
        head = self._committer.head
        topics = [topic for topic in head.halted_topics if topic.topic_id in request.topic_ids]
        findings = tuple(chain.from_iterable(topic.findings for topic in topics))
        try:
            accepted = decode_options(request.options)
        except msgspec.ValidationError:
            return None
        if len(topics) != len(request.topic_ids) or find_unanswered(findings, accepted):
            return None
        return ResumeDecision(
            stream=head.stream, findings=findings, accepted=accepted, who=request.who, why=request.why
        )

    def _resume(self, decision: ResumeDecision) -> None:
        head = self._committer.head
        cause = f"{decision.why} ({decision.who})"
        self._committer.wait_for_side_tables()  # the ledger is one of them: positions are read from it
        known = read_positions(self._context.folders, head)
        planned = make_batch_identity(self._writer, head)
        batch = BatchCommit(
            number=planned.number,
            commit_hour=planned.commit_hour,
            accepts_burst=head.accepts_burst,
            resumed_topics=frozenset(finding.topic_id for finding in decision.findings),
            resumption=Resumption(batch=planned.number, at=time.time(), cause=cause),
        )
        try:
            self._committer.commit(batch, lambda stamp, _: make_accepted_rows(stamp, known, decision), full=True)
        except HourClosed:
            self._committer.refresh_head()
            self._resume(decision)

    def claim_again(self, claimed: WriterClaim) -> WriterClaim:
        """The claim with the positions of the ledger after a resumption."""
        head = self._committer.head
        self._committer.wait_for_side_tables()
        return msgspec.structs.replace(claimed, head=head, known=read_positions(self._context.folders, head))


def _place(finding: Finding) -> tuple[str, str, int]:
    return finding.cause, finding.topic_id, finding.partition
