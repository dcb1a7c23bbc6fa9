"""Options that an operator may accept after a halt, and the option that a finding suggests.

Nothing is accepted implicitly: each finding of a halt needs an option that covers it, and each option is recorded in
the ledger. The suggested option costs the least that may be enough: duplicates and messages that cannot be decoded
are passed over. Any other option acts as the policy `Suspend`: it resumes at the next snapshot.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol, Self

import msgspec

from lockstep.errors import LockstepError
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding

SHOWN_MAX = 20
"""Findings in the text of an error; a deleted cluster has thousands."""
LISTED_MAX = 5
"""Findings of a halt whose options are listed one by one in a command."""


class StreamHalted(LockstepError):
    """The stream is halted and cannot run.

    Attributes:
        stream: The stream's name.
        findings: The evidence that halted it.
        STATE: The halted subject, in part of a sentence.
    """

    STATE: ClassVar[str] = "is halted"

    def __init__(self, stream: str, findings: tuple[Finding, ...], *, hides_sessions: bool = False) -> None:
        next_step = make_resume_command(stream, findings, hides_sessions=hides_sessions)
        if hides_sessions:
            findings = tuple(finding.without_session() for finding in findings)
        lines = [f"  {finding}{_indented(finding.traceback)}" for finding in findings[:SHOWN_MAX]]
        if len(findings) > SHOWN_MAX:
            lines.append(f"  and {len(findings) - SHOWN_MAX} more: lockstep status {stream}")
        text = "\n".join(lines)
        super().__init__(f"stream {stream} {self.STATE}:\n{text}", next_step=next_step)
        self.stream = stream
        self.findings = findings

    def without_sessions(self) -> StreamHalted:
        """The error for events and logs, which no erasure reaches."""
        return type(self)(self.stream, self.findings, hides_sessions=True)


class IntegrityLost(StreamHalted):
    """Integrity was lost outside of lockstep; everything before the loss and the halt itself are committed."""


def _indented(traceback: str) -> str:
    return "".join(f"\n    {line}" for line in traceback.splitlines())


def make_resume_command(stream: str, findings: tuple[Finding, ...], *, hides_sessions: bool = False) -> str:
    """The command that resumes a stream after an operator found the cause.

    For many findings, or options that name a session which is to be hidden, it is the command that plans it.
    """
    at_messages = any(finding.cause not in {*NOTHING_THERE, *OF_A_TOPIC} for finding in findings)
    find = f"find the cause with lockstep message {stream}" if at_messages else "find the cause"
    fixed = "(or --fixed, if the cause is fixed)"
    options = [suggest_option(finding) for finding in findings[: LISTED_MAX + 1]]
    names_session = hides_sessions and any(isinstance(option, SkipSession) for option in options)
    if names_session or len(options) > LISTED_MAX:
        return f"{find}, then: lockstep resume {stream} --suggested --plan, then with --why '...' {fixed}"
    return f"{find}, then: lockstep resume {stream} {list_options(options)} --why '...' {fixed}"


BURST = "quarantine burst"
REPEATS = ("repeat", "sequence goes back", "same number, other content", "same id, other content", "ids missing")
"""The session is complete without the message: passing over it is enough."""
NOTHING_THERE = (Fault.EXPIRED, Fault.HOLE)
"""Offsets without a message: nothing to read again or to quarantine."""
OF_A_TOPIC = (BURST, Fault.TOPIC_DELETED, Fault.PARTITIONS_ADDED, Fault.RECREATED, Fault.TRUNCATED)
"""Not about messages at an offset: each has a separate option."""
SESSION_LENGTH_MAX = 200
_SURROGATE = re.compile(r"\\ud[89a-f][0-9a-f]{2}")

TOPIC = r"(?P<topic>[A-Za-z0-9._-]+)"
PLACE = r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d+)"


class Acceptance(Protocol):
    """One accepted option.

    Attributes:
        OPTION: Its option of `lockstep resume`, without dashes.
    """

    OPTION: ClassVar[str]

    @property
    def argument(self) -> str:
        """The argument of the option; empty without one."""
        ...

    def covers(self, finding: Finding) -> bool:
        """Whether the stream may resume after this finding."""
        ...

    def concerns(self, topic: str, partition: int) -> bool:
        """Whether the option concerns this partition."""
        ...


class _OfPartition(msgspec.Struct, frozen=True):
    topic: str
    partition: int

    @property
    def argument(self) -> str:
        """See `Acceptance`."""
        return f"{self.topic}/{self.partition}"

    def concerns(self, topic: str, partition: int) -> bool:
        """See `Acceptance`."""
        return (self.topic, self.partition) == (topic, partition)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From TOPIC/PARTITION. Raises ValueError with the right form."""
        match = _matched(PLACE, text, "TOPIC/PARTITION, for example books.eth/0")
        return cls(match["topic"], int(match["partition"]))


class _OfTopic(msgspec.Struct, frozen=True):
    topic: str
    ANSWERS: ClassVar[str] = ""

    @property
    def argument(self) -> str:
        """See `Acceptance`."""
        return self.topic

    def covers(self, finding: Finding) -> bool:
        """See `Acceptance`."""
        return finding.cause == self.ANSWERS and finding.topic == self.topic

    def concerns(self, topic: str, partition: int) -> bool:
        """See `Acceptance`."""
        return self.topic == topic

    @classmethod
    def parse(cls, text: str) -> Self:
        """From TOPIC. Raises ValueError with the right form."""
        return cls(_matched(TOPIC, text, "TOPIC, for example books.eth")["topic"])


class AcceptLoss(_OfPartition, frozen=True):
    """Offsets [start, until) of a partition are passed over; all sessions continue."""

    start: int
    until: int
    OPTION: ClassVar[str] = "accept-loss"

    @property
    def argument(self) -> str:
        """See `Acceptance`."""
        return f"{self.topic}/{self.partition}{show_range(self.start, self.until)}"

    def covers(self, finding: Finding) -> bool:
        """See `Acceptance`."""
        if not self.concerns(finding.topic, finding.partition) or finding.cause in OF_A_TOPIC:
            return False
        until = finding.until
        if finding.cause == Fault.UNDECODABLE:  # of a run of them, any part
            until = finding.offset + 1
        return self.start <= finding.offset and until <= self.until

    @classmethod
    def parse(cls, text: str) -> Self:
        """From TOPIC/PARTITION@OFFSET, or TOPIC/PARTITION@FROM-UNTIL. Raises ValueError with the right form."""
        form = "TOPIC/PARTITION@OFFSET or TOPIC/PARTITION@FROM-UNTIL, for example books.eth/0@120"
        return cls(*_range(text, form))


class SkipSession(_OfPartition, frozen=True):
    """A session's messages are quarantined until its next snapshot; the rest of the partition continues."""

    session: str
    OPTION: ClassVar[str] = "skip-session"

    @property
    def argument(self) -> str:
        """See `Acceptance`."""
        return f"{self.topic}/{self.partition}/{self.session}"

    def covers(self, finding: Finding) -> bool:
        """See `Acceptance`. An undecodable message has no known session."""
        here = self.concerns(finding.topic, finding.partition) and finding.session == self.session
        return here and finding.cause not in {Fault.UNDECODABLE, *NOTHING_THERE, *OF_A_TOPIC}

    @classmethod
    def parse(cls, text: str) -> Self:
        """From TOPIC/PARTITION/SESSION. Raises ValueError with the right form."""
        match = _matched(rf"{PLACE}/(?P<session>.*)", text, "TOPIC/PARTITION/SESSION, for example books.eth/0/eth")
        return cls(match["topic"], int(match["partition"]), match["session"])


class FromSnapshot(_OfPartition, frozen=True):
    """All sessions of a partition wait for their next snapshot.

    Attributes:
        start: First offset given up; None for the position of the stream.
        until: First offset after it; None for the end of the finding. Messages before it are quarantined, and only
            snapshots from there on count.
    """

    start: int | None = None
    until: int | None = None
    OPTION: ClassVar[str] = "from-snapshot"

    @property
    def argument(self) -> str:
        """See `Acceptance`."""
        place = f"{self.topic}/{self.partition}"
        if self.until is None:
            return place
        return f"{place}{show_range(self.start or 0, self.until)}"

    def covers(self, finding: Finding) -> bool:
        """See `Acceptance`."""
        here = self.concerns(finding.topic, finding.partition) and finding.cause not in OF_A_TOPIC
        return here and (self.until is None or (self.start or 0) <= finding.offset < self.until)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From TOPIC/PARTITION, or TOPIC/PARTITION@FROM-UNTIL. Raises ValueError with the right form."""
        form = "TOPIC/PARTITION or TOPIC/PARTITION@FROM-UNTIL, for example books.eth/0 or books.eth/0@120-170"
        if "@" in text:
            return cls(*_range(text, form))
        match = _matched(PLACE, text, form)
        return cls(match["topic"], int(match["partition"]))


class Truncated(_OfPartition, frozen=True):
    """A log ends before the position: records appended below it are passed over, and all sessions are suspended."""

    OPTION: ClassVar[str] = "accept-truncated"

    def covers(self, finding: Finding) -> bool:
        """See `Acceptance`."""
        return self.concerns(finding.topic, finding.partition) and finding.cause == Fault.TRUNCATED


class Recreated(_OfTopic, frozen=True):
    """A topic was re-created: the new topic is read from its start, and all sessions start over."""

    OPTION: ClassVar[str] = "accept-recreated"
    ANSWERS: ClassVar[str] = Fault.RECREATED


class AcceptDeleted(_OfTopic, frozen=True):
    """A topic was deleted: it is dropped from the subscription."""

    OPTION: ClassVar[str] = "accept-deleted"
    ANSWERS: ClassVar[str] = Fault.TOPIC_DELETED


class AcceptGrowth(_OfTopic, frozen=True):
    """A topic has new partitions, which are read from their start."""

    OPTION: ClassVar[str] = "accept-growth"
    ANSWERS: ClassVar[str] = Fault.PARTITIONS_ADDED


class Quarantined(msgspec.Struct, frozen=True):
    """One burst is quarantined: the stream continues until the burst is over."""

    OPTION: ClassVar[str] = "accept-quarantine"

    @property
    def argument(self) -> str:
        """See `Acceptance`."""
        return ""

    def covers(self, finding: Finding) -> bool:
        """See `Acceptance`."""
        return finding.cause == BURST

    def concerns(self, topic: str, partition: int) -> bool:
        """See `Acceptance`."""
        return True


class Fixed(msgspec.Struct, frozen=True):
    """Resume at the same offset: the cause has been fixed; the stream halts again if it has not."""

    OPTION: ClassVar[str] = "fixed"

    @property
    def argument(self) -> str:
        """See `Acceptance`."""
        return ""

    def covers(self, finding: Finding) -> bool:
        """See `Acceptance`."""
        return True

    def concerns(self, topic: str, partition: int) -> bool:
        """See `Acceptance`."""
        return True


KINDS: tuple[type[Acceptance], ...] = (
    AcceptLoss,
    SkipSession,
    FromSnapshot,
    Truncated,
    Recreated,
    AcceptDeleted,
    AcceptGrowth,
    Quarantined,
    Fixed,
)
_BY_OPTION = {kind.OPTION: kind for kind in KINDS}


def find_unanswered(findings: Iterable[Finding], accepted: Sequence[Acceptance]) -> tuple[Finding, ...]:
    """The findings that no accepted option covers."""
    return tuple(finding for finding in findings if not _is_covered(finding, accepted))


def _is_covered(finding: Finding, accepted: Sequence[Acceptance]) -> bool:
    return any(option.covers(finding) for option in accepted)


def suggest_option(finding: Finding) -> Acceptance:
    """The least lossy option after a finding whose cause cannot be fixed."""
    topic = finding.topic
    partition = finding.partition
    of_cause: dict[str, Acceptance] = {
        BURST: Quarantined(),
        Fault.TOPIC_DELETED: AcceptDeleted(topic),
        Fault.PARTITIONS_ADDED: AcceptGrowth(topic),
        Fault.RECREATED: Recreated(topic),
        Fault.TRUNCATED: Truncated(topic, partition),
        **dict.fromkeys((*REPEATS, Fault.UNDECODABLE), _pass_over(finding)),
    }
    if finding.cause in of_cause:
        return of_cause[finding.cause]
    skip = SkipSession(topic, partition, finding.session or "")
    if skip.covers(finding) and _can_be_typed(skip.session):  # one session instead of the partition
        return skip
    return FromSnapshot(topic, partition)


def list_alternatives(finding: Finding) -> tuple[Acceptance, ...]:
    """All options that give up messages and are enough after a finding, the suggested option first."""
    others: list[Acceptance] = [FromSnapshot(finding.topic, finding.partition)]
    if finding.cause == Fault.UNDECODABLE:
        others = [_from_snapshot(finding)]
    session = SkipSession(finding.topic, finding.partition, finding.session or "")
    if session.covers(finding) and _can_be_typed(session.session):
        others.append(session)
    enough = [option for option in others if option.covers(finding)]
    return tuple(dict.fromkeys([suggest_option(finding), *enough]))


def suggest_options(findings: Iterable[Finding], accepted: Sequence[Acceptance]) -> tuple[Acceptance, ...]:
    """The options that `suggest_option` names for all findings which no accepted option covers, each once."""
    return tuple(dict.fromkeys(map(suggest_option, find_unanswered(findings, accepted))))


def _pass_over(finding: Finding) -> AcceptLoss:
    return AcceptLoss(finding.topic, finding.partition, finding.offset, finding.until)


def _from_snapshot(finding: Finding) -> FromSnapshot:
    """Name the range of a run of messages that is given up, so that its extent is visible."""
    if finding.cause == Fault.UNDECODABLE and finding.until > finding.offset + 1:
        return FromSnapshot(finding.topic, finding.partition, finding.offset, finding.until)
    return FromSnapshot(finding.topic, finding.partition)


EncodedOption = tuple[str, dict[str, str | int | None]]
"""An option of `lockstep resume`, and its fields."""


def encode_options(accepted: Iterable[Acceptance]) -> tuple[EncodedOption, ...]:
    """The options for a request to a run."""
    return tuple((option.OPTION, msgspec.to_builtins(option)) for option in accepted)


def decode_options(encoded: Iterable[EncodedOption]) -> tuple[Acceptance, ...]:
    """The options of such a request.

    Raises:
        msgspec.ValidationError: It is of another release.
    """
    options = tuple(encoded)
    unknown = [option for option, _ in options if option not in _BY_OPTION]
    if unknown:
        raise msgspec.ValidationError(f"unknown options {unknown}")
    return tuple(msgspec.convert(fields, _BY_OPTION[option]) for option, fields in options)


def list_options(accepted: Iterable[Acceptance]) -> str:
    """The options of `lockstep resume`, quoted for a shell, without duplicates."""
    texts = [f"--{option.OPTION} {shlex.quote(option.argument)}".removesuffix(" ''") for option in accepted]
    return " ".join(dict.fromkeys(texts))


def _can_be_typed(session: str) -> bool:
    """Whether the text is the session itself: of a session with lone surrogates a finding holds escapes."""
    return session.isprintable() and len(session) <= SESSION_LENGTH_MAX and not _SURROGATE.search(session)


def _range(text: str, form: str) -> tuple[str, int, int, int]:
    """Topic, partition, first offset and first offset after."""
    match = _matched(rf"{PLACE}@(?P<start>\d+)(-(?P<until>\d+))?", text, form)
    start = int(match["start"])
    until = start + 1
    if match["until"] is not None:
        until = int(match["until"])
    if start > until:
        raise ValueError(form)
    return match["topic"], int(match["partition"]), start, until


def show_range(start: int, until: int) -> str:
    """Offsets [start, until), as the options of `lockstep resume` name them."""
    return f"@{start}" if until == start + 1 else f"@{start}-{until}"


def _matched(form: str, text: str, wanted: str) -> re.Match[str]:
    match = re.fullmatch(form, text, re.DOTALL)
    if match is None:
        raise ValueError(wanted)
    return match
