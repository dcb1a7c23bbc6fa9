"""Resumes a halted stream, or its halted topics while the run continues."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from lockstep.control.handover import ResumeRequest, forget_resume_request, request_resumption
from lockstep.control.heartbeat import is_writer_alive
from lockstep.engine.driver.resumption import ResumeDecision, make_accepted_rows
from lockstep.errors import LockstepError, format_some
from lockstep.integrity.resume_options import (
    SHOWN_MAX,
    Acceptance,
    Quarantined,
    encode_options,
    find_unanswered,
    list_options,
    suggest_option,
    suggest_options,
)
from lockstep.model.finding import Finding
from lockstep.model.position import TopicNamePartition
from lockstep.operations.commit_positions import commit_positions
from lockstep.operations.resume_cost import OptionCost, ResumeCosts
from lockstep.operations.stream_table import open_table
from lockstep.table import commit_kinds, ledger, side_tables
from lockstep.table.commit import OutputLog, commit_batch, commit_claim
from lockstep.table.head import Desired, Head, Resumption
from lockstep.table.layout import StreamFolders
from lockstep.table.positions import LedgerStamp
from lockstep.time_limit import SLOW, describe_silence


class NotHalted(LockstepError):
    """Resume of a stream that is not halted, and has no halted topic.

    Attributes:
        stream: The stream's name.
        desired: Its desired state.
    """

    def __init__(self, stream: str, desired: str, topics: str = "") -> None:
        step = f"lockstep start {stream}"
        if desired == Desired.RUNNING.value or topics:
            step = f"nothing is to be resumed: lockstep status {stream}"
        of_topics = f", and not all of topics {topics} are halted" if topics else ""
        super().__init__(f"stream {stream} is not halted, it is {desired}{of_topics}", next_step=step)
        self.stream = stream
        self.desired = desired


class UnansweredFindings(LockstepError):
    """A resume does not cover every finding of the halt.

    Attributes:
        stream: The stream's name.
        findings: Findings without a resume option.
    """

    def __init__(
        self, stream: str, findings: tuple[Finding, ...], accepted: Sequence[Acceptance], why: str = "..."
    ) -> None:
        listed = "\n".join(f"  {finding}" for finding in findings[:SHOWN_MAX])
        flags = list_options([*accepted, *(suggest_option(finding) for finding in findings)])
        super().__init__(
            f"stream {stream} stays halted; these findings need a resume option:\n{listed}",
            next_step=f"lockstep resume {stream} {flags} --why {shlex.quote(why)} (or --fixed, if the cause is fixed)",
        )
        self.stream = stream
        self.findings = findings


class PlannedAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one kind of option on the findings of one cause.

    Attributes:
        option: The option of `lockstep resume`, without dashes.
        cause: Cause of the findings.
        topics: Number of topics.
        partitions: Number of partitions.
        findings: Number of findings.
        offsets: Offsets that the findings name: they are passed over, quarantined, or read under suspended sessions.
    """

    option: str
    cause: str
    topics: int
    partitions: int
    findings: int
    offsets: int


class ResumePreview(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a resume.

    Attributes:
        stream: Name of the stream.
        options: By option and cause.
        command: The whole options, each of which may be given by itself instead.
        unanswered: Findings without an option: the stream would stay halted.
        costs: The cost of each sufficient option after a finding, the cheapest first; of the first findings.
    """

    stream: str
    options: tuple[PlannedAcceptance, ...]
    command: str
    unanswered: tuple[Finding, ...]
    costs: tuple[OptionCost, ...] = ()


ANSWER_SECONDS = 120.0
"""Time for a run to reach a resumption: a batch may be in progress."""
POLL_SECONDS = 0.2


class ResumptionUnanswered(LockstepError):
    """A run did not resume halted topics; nothing was changed.

    Attributes:
        stream: The stream's name.
        topics: Names of the topics.
    """

    def __init__(self, stream: str, topics: tuple[str, ...], why: str) -> None:
        problem = f"topics {format_some(topics)} of stream {stream} were not resumed: {why}"
        super().__init__(problem, next_step=f"{SLOW}: lockstep status {stream}, then try again")
        self.stream = stream
        self.topics = topics


def plan_resume(
    folders: StreamFolders,
    accepted: Sequence[Acceptance],
    *,
    suggested: bool,
    topics: Collection[str] = (),
    costs: ResumeCosts | None = None,
) -> ResumePreview:
    """Show the effect of a resume with these options; commits nothing.

    Args:
        folders: Folders of the stream.
        accepted: The resume options.
        topics: The halted topics to resume; by default all.
        suggested: Add the suggested option of each finding that no other covers.
        costs: Counts the cost of the options; None without the declaration.

    Raises:
        NoTable: The stream has never run.
        KafkaError: Kafka does not answer.
        NotHalted: The stream is not halted.
    """
    head = open_table(folders).base().head
    findings = find_open_findings(head, topics)
    options = list(accepted)
    if suggested:
        options += suggest_options(findings, accepted)
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        option = next((each.OPTION for each in options if each.covers(finding)), None)
        if option is not None:
            groups.setdefault((option, finding.cause), []).append(finding)
    counted: tuple[OptionCost, ...] = ()
    if costs:
        counted = tuple(costs.count(folders, head))
    return ResumePreview(
        stream=head.stream,
        options=tuple(_planned(option, cause, found) for (option, cause), found in sorted(groups.items())),
        command=list_options(options),
        unanswered=find_unanswered(findings, options),
        costs=counted,
    )


def _planned(option: str, cause: str, findings: Sequence[Finding]) -> PlannedAcceptance:
    return PlannedAcceptance(
        option=option,
        cause=cause,
        topics=len({each.topic for each in findings}),
        partitions=len({TopicNamePartition(each.topic, each.partition) for each in findings}),
        findings=len(findings),
        offsets=sum(max(0, each.until - each.offset) for each in findings),
    )


def find_open_findings(head: Head, topics: Collection[str] = ()) -> tuple[Finding, ...]:
    """The findings that a resume must answer: those of the halt of the stream, else those of its halted topics.

    Args:
        head: The head.
        topics: Names of the halted topics to resume; by default all.

    Raises:
        NotHalted: The stream is not halted, or a topic is not.
    """
    if head.desired is Desired.HALTED:
        return head.findings
    chosen = [halted for halted in head.halted_topics if not topics or halted.topic in topics]
    if not chosen or not {halted.topic for halted in chosen} >= set(topics):
        raise NotHalted(head.stream, head.desired.value, format_some(sorted(topics)))
    findings = list[Finding]()
    for halted in chosen:
        findings += halted.findings
    return tuple(findings)


def resume_stream(
    folders: StreamFolders,
    *,
    why: str,
    who: str,
    accepted: Sequence[Acceptance],
    suggested: bool = False,
    topics: Collection[str] = (),
) -> Head:
    """Resume a halted stream, or halted topics of a running stream.

    1. Read the halt; each of its findings needs a resume option.
    2. Ask a live run to resume the topics.
    3. Without one, claim, so that no other run interferes, and commit the accepted options as a separate batch, with
       cause and operator in the ledger; the stream stays halted until then.

    Args:
        folders: Folders of the stream.
        why: The cause of the halt.
        who: The operator.
        accepted: The resume options.
        suggested: Add the suggested option of each finding that no other covers.
        topics: Names of the halted topics to resume; by default all.

    Raises:
        NotHalted: The stream is not halted, nor the topics.
        UnansweredFindings: Names the findings without an option, and the whole command.
        PositionMismatch: An accepted option does not match the stream's position.
        ResumptionUnanswered: The run did not resume the topics.
    """
    output = open_table(folders)
    head = output.base().head  # 1
    findings = find_open_findings(head, topics)
    options = list(accepted)
    if suggested:
        options += suggest_options(findings, accepted)
    positions = ledger.read_positions(folders, head)
    if unanswered := find_unanswered(findings, options):
        places = {TopicNamePartition(row.topic, row.partition) for row in positions.values()}
        usable = [option for option in options if _is_somewhere(option, places)]
        raise UnansweredFindings(head.stream, unanswered, usable, why)
    decision = ResumeDecision(stream=head.stream, findings=findings, accepted=tuple(options), who=who, why=why)
    # The stream runs, and only its run may commit: it resumes the topics before its next batch.
    if head.desired is not Desired.HALTED and is_writer_alive(folders.control, head.epoch):
        make_accepted_rows(_stamp(head, decision), positions, decision)  # raises the errors of the run
        return _ask_writer(folders, output, head, decision)  # 2
    return _commit(folders, output, head, decision, topics)  # 3


def _commit(
    folders: StreamFolders, output: OutputLog, before: Head, decision: ResumeDecision, topics: Collection[str]
) -> Head:
    """Claim, then commit the resume: a full set of positions."""
    refuse = partial(find_open_findings, topics=topics)
    why_who = f"{decision.why} ({decision.who})"
    claimed = output.commit(commit_claim(before.epoch, output.table_id, refuse, cause="resume")).head
    # The last batch of the halted run may be missing in the ledger, which is read next.
    side_tables.SideLogs(folders).catch_up(claimed)
    rows = make_accepted_rows(_stamp(claimed, decision), ledger.read_positions(folders, claimed), decision)
    resumption = Resumption(batch=claimed.batch + 1, at=time.time(), cause=why_who)
    if claimed.desired is Desired.HALTED:
        burst = any(isinstance(option, Quarantined) for option in decision.accepted)
        resumed = frozenset[str]()
    else:
        burst = claimed.accepts_burst
        resumed = frozenset(finding.topic_id for finding in decision.findings)
    return commit_positions(
        output,
        folders,
        claimed,
        rows,
        lambda writer, batch: commit_batch(
            writer,
            replace(batch, accepts_burst=burst, resumption=resumption, resumed_topics=resumed),
            kind=commit_kinds.RESUME,
            reason=f"resumed: {why_who}",
        ),
    )


def _ask_writer(folders: StreamFolders, output: OutputLog, before: Head, decision: ResumeDecision) -> Head:
    """Have the run resume the topics before its next batch; returns the head after that."""
    ids = {finding.topic_id for finding in decision.findings}
    names = {finding.topic for finding in decision.findings}
    encoded = encode_options(decision.accepted)
    request = ResumeRequest(tuple(sorted(ids)), encoded, who=decision.who, why=decision.why)
    deadline = time.monotonic() + ANSWER_SECONDS
    is_asked = False
    head = before
    try:
        while time.monotonic() < deadline and head.epoch == before.epoch:
            is_asked = is_asked or request_resumption(folders.control, before.epoch, request)
            time.sleep(POLL_SECONDS)
            head = output.base().head
            if not any(each.topic_id in ids and each.batch <= before.batch for each in head.halted_topics):
                return head  # also if a topic was halted again: its cause was not fixed
    finally:
        # The run must not find the request later: the command reports that nothing was changed.
        unanswered = forget_resume_request(folders.control, before.epoch, request)
    if head.epoch != before.epoch or not is_writer_alive(folders.control, before.epoch):
        why = "the run has ended, or sends no heartbeats"
    elif not is_asked:
        why = "another resumption waits for the run"
    elif unanswered:
        why = describe_silence("the run", ANSWER_SECONDS)
    else:
        why = "the run has refused it; see its log"
    raise ResumptionUnanswered(before.stream, tuple(sorted(names)), why)


def _is_somewhere(accepted: Acceptance, places: Iterable[TopicNamePartition]) -> bool:
    """Whether a finding concerns a partition that the stream reads: others would be refused as part of any command."""
    return any(accepted.concerns(topic, partition) for topic, partition in places)


def _stamp(head: Head, decision: ResumeDecision) -> LedgerStamp:
    return LedgerStamp(
        generation=head.generation,
        batch=head.batch + 1,
        epoch=head.epoch,
        committed_at=ledger.read_clock(),
        batch_seconds=0.0,
        restart_cause=f"resume: {decision.why} ({decision.who})",
    )
