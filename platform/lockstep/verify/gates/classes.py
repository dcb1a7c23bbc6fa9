"""None, once, ordered, strict and their lookup."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from lockstep.model.record import Envelope, Kind, Link, Record
from lockstep.table.head import PolicyChange, ViolationPolicy
from lockstep.verify.gates import window
from lockstep.verify.gates.base import (
    LARGEST,
    Action,
    GateAnswer,
    GateRule,
    GateRules,
    Memory,
    ReplayWatermark,
    Ruling,
    count_on,
    hash_content,
    is_64_bit,
    may_be_sent,
    raise_not_provable,
    refuse_proof,
)


def make_none_rules(integrity: Any) -> GateRules:
    """The rules of a declared `NoIntegrity`."""
    return GateRules(
        rule=partial(rule_by_counting, wraps_at=integrity.wraps_at),
        undecodable=GateAnswer.QUARANTINE,
        raised=GateAnswer.QUARANTINE,
        hole=GateAnswer.COUNT,
        expired=GateAnswer.COUNT,
        grew=GateAnswer.COUNT,
        tolerates_violations=False,
        passes_unknown=True,
        of_one_partition=False,
        tolerates_all=True,
    )


def rule_by_counting(memory: Memory, envelope: Envelope, record: Record, wraps_at: int | None = None) -> Ruling:
    """Memory is the highest number since the last snapshot; True before the first."""
    del record
    number = envelope.sequence
    highest = True if memory is None else memory
    if number is None or not may_be_sent(number, wraps_at):
        return Ruling(Action.ACCEPT, highest)
    if highest is True or not isinstance(highest, int):
        return Ruling(Action.ACCEPT, number)
    is_snapshot = envelope.kind is Kind.SNAPSHOT
    if not (is_snapshot and envelope.restarts_sequence):
        number = count_on(number, highest, wraps_at)
    if number == highest + 1 or (is_snapshot and (envelope.restarts_sequence or number == highest)):
        return Ruling(Action.ACCEPT, number)
    if number > highest:
        return Ruling(Action.ACCEPT, number, "gap")
    cause = "repeat" if number == highest else "sequence goes back"
    if is_snapshot:
        highest = number
    return Ruling(Action.ACCEPT, highest, cause)


def make_once_rules(integrity: Any, *, tolerates_violations: bool) -> GateRules:
    """The rules of a declared `Once`."""
    answer = GateAnswer.SUSPEND if tolerates_violations else GateAnswer.STOP
    return GateRules(
        rule=partial(rule_by_id, keep_ids=integrity.keep_ids),
        undecodable=GateAnswer.QUARANTINE,
        raised=GateAnswer.QUARANTINE,
        hole=answer,
        expired=answer,
        grew=GateAnswer.COUNT,
        tolerates_violations=tolerates_violations,
        passes_unknown=True,
        of_one_partition=False,
    )


def rule_by_id(memory: Memory, envelope: Envelope, record: Record, keep_ids: int) -> Ruling:
    """Memory is {"n": messages of the session, "ids": content of the newest by a digest of their id}."""
    met: dict[str, Any] = memory if isinstance(memory, dict) else {"n": 0, "ids": {}}
    named = envelope.id
    if named is None and envelope.restarts_sequence and envelope.kind is Kind.SNAPSHOT:
        met = {"n": met["n"], "ids": {}}  # the producer restarts the numbering: earlier numbers do not count
    key = envelope.sequence if named is None else named
    identity = _digest_key(key)
    content = met["ids"].get(identity)
    if content is not None and content != hash_content(record):
        return refuse_proof("same id, other content")
    if content is not None and named is None:  # a number alone does not prove that it is the same message
        return refuse_proof("repeat")
    if content is not None:
        return Ruling(Action.DROP, memory, "repeat")
    count = envelope.count if envelope.kind is Kind.END else None
    if count not in {None, met["n"] + 1}:
        return refuse_proof("ids missing")
    ids = met["ids"]
    if identity is not None:
        ids = {**ids, identity: hash_content(record)}
    for oldest in list(ids)[: max(0, len(ids) - keep_ids)]:
        del ids[oldest]
    return Ruling(Action.ACCEPT, {"n": met["n"] + 1, "ids": ids})


def _digest_key(key: object) -> bytes | None:
    if key is None:
        return None
    return blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def make_ordered_rules(integrity: Any, *, tolerates_violations: bool, restarts_on_growth: bool) -> GateRules:
    """The rules of a declared `Ordered`."""
    return GateRules(
        rule=partial(rule_by_number, wraps_at=integrity.wraps_at),
        undecodable=GateAnswer.SUSPEND,
        raised=GateAnswer.SUSPEND,
        hole=GateAnswer.COUNT,
        expired=GateAnswer.SUSPEND,
        grew=GateAnswer.SUSPEND if tolerates_violations or restarts_on_growth else GateAnswer.STOP,
        tolerates_violations=tolerates_violations,
    )


def rule_by_number(memory: Memory, envelope: Envelope, record: Record, wraps_at: int | None = None) -> Ruling:
    """The producer's number rises. Memory is the last number, or {"at": last offset} of a session without numbers."""
    number = envelope.sequence
    if number is not None and not may_be_sent(number, wraps_at):
        return refuse_proof("number out of range")
    if envelope.kind is Kind.SNAPSHOT:
        return Ruling(Action.ACCEPT, {"at": record.offset} if number is None else number)
    if memory is None:
        return Ruling(Action.WAIT, None, "unknown session")
    if isinstance(memory, dict) is not (number is None):
        ends = number is None and envelope.kind is Kind.END
        if ends:
            return Ruling(Action.ACCEPT, memory)
        return refuse_proof("no evidence")
    return _count_up(memory, number, record, wraps_at)


def _count_up(memory: Memory, number: int | None, record: Record, wraps_at: int | None) -> Ruling:
    if number is None or not isinstance(memory, int):
        return Ruling(Action.ACCEPT, {"at": record.offset})
    number = count_on(number, memory, wraps_at)
    if number <= memory:
        return Ruling(Action.DROP, memory, "repeat" if number == memory else "sequence goes back")
    return Ruling(Action.ACCEPT, number, "gap" if number - memory > 1 else "")


REMEMBERED = 64
"""Contents kept per session where duplicates are dropped."""
WAITING_MAX = 10_000
"""Updates of a session buffered until its snapshot."""


def make_strict_rules(integrity: Any, *, tolerates_violations: bool, restarts_on_growth: bool) -> GateRules:
    """The rules of a declared `Strict`."""
    answer = GateAnswer.SUSPEND if tolerates_violations else GateAnswer.STOP
    return GateRules(
        rule=_rule(integrity),
        undecodable=answer,
        raised=answer,
        hole=answer,
        expired=answer,
        grew=GateAnswer.SUSPEND if restarts_on_growth else answer,
        tolerates_violations=tolerates_violations,
    )


def _rule(integrity: Any) -> GateRule:
    evidence = integrity.evidence
    repeats = integrity.repeats
    name = type(evidence).__name__
    if name not in _RULES:
        raise_not_provable(f"Strict by {name}")
    rule = _RULES[name]
    if name == "Sequence":
        rule = partial(rule_by_sequence, wraps_at=evidence.wraps_at)
    if integrity.buffer_until_snapshot:
        rule = partial(rule_until_snapshot, rule, getattr(evidence, "wraps_at", None))
    if repeats.name == "DROP":
        return partial(drop_duplicates, rule)
    return rule


def rule_by_sequence(memory: Memory, envelope: Envelope, record: Record, wraps_at: int | None = None) -> Ruling:
    """Each number is one more than the last; a snapshot may repeat the last number, or restart the numbering."""
    del record
    number = envelope.sequence
    is_snapshot = envelope.kind is Kind.SNAPSHOT
    if number is None:
        return refuse_proof("no evidence")
    if memory is None or (is_snapshot and _resets(envelope)):
        return _begun(envelope, number, number, wraps_at)
    last = _number(memory)
    if number != last + 1 and not (is_snapshot and number == last):
        if wraps_at is not None and not may_be_sent(number, wraps_at):
            return refuse_proof("number out of range")
        number = count_on(number, last, wraps_at)
    if number - last == 1 or (is_snapshot and number == last):
        return Ruling(Action.ACCEPT, number)
    if number > last:
        return refuse_proof("gap")
    return refuse_proof("repeat" if number == last else "sequence goes back")


def rule_by_link(memory: Memory, envelope: Envelope, record: Record) -> Ruling:
    """Each message names its predecessor, or ids that follow on; memory is [last id, 1 before any update]."""
    del record
    link = envelope.link
    is_snapshot = envelope.kind is Kind.SNAPSHOT
    if link is None:
        return refuse_proof("no evidence")
    if not isinstance(memory, list) or (is_snapshot and _resets(envelope)):
        return _begun(envelope, link.last, [link.last, 1])
    last, untouched = memory
    if is_snapshot:
        if link.last == last:
            return Ruling(Action.ACCEPT, [last, untouched])
        return refuse_proof(_why(link, last, link.last))
    return _follow_link(link, last, is_untouched=untouched == 1)


def _follow_link(link: Link, last: int, *, is_untouched: bool) -> Ruling:
    """The ruling on an update after another message of its session."""
    # A snapshot that was fetched separately may end in the middle of the first update's ids.
    fits = _follows(link, last) or (is_untouched and _reaches_over(link, last))
    if not _runs_forward(link):
        return refuse_proof("broken link")
    predecessor = link.previous
    if predecessor is None and link.first is not None:
        predecessor = link.first - 1
    if fits:
        return Ruling(Action.ACCEPT, [link.last, 0])
    return refuse_proof(_why(link, last, predecessor))


def rule_by_count(memory: Memory, envelope: Envelope, record: Record) -> Ruling:
    """Checksums are verified by the fold; this rule checks that a session starts with a snapshot, and its count.

    Memory is [the number of its messages]; True if unknown.
    """
    del record
    if memory is None:
        if envelope.kind is Kind.END and envelope.count not in {None, 1}:
            return refuse_proof("count")
        if envelope.kind is Kind.SNAPSHOT:
            return Ruling(Action.ACCEPT, [1])
        return refuse_proof("unknown session")
    if not isinstance(memory, list):
        return Ruling(Action.ACCEPT, memory=True)
    seen = memory[0] + 1
    count = envelope.count if envelope.kind is Kind.END else None
    if count not in {None, seen}:
        return refuse_proof("count")
    return Ruling(Action.ACCEPT, [seen])


def drop_duplicates(rule: GateRule, memory: Memory, envelope: Envelope, record: Record) -> Ruling:
    """A message seen before with the same content is dropped; memory is {"r": contents, "g": the rule's}."""
    parts: dict[str, Any] = memory if isinstance(memory, dict) else {"r": {}, "g": memory}
    number = envelope.sequence if envelope.link is None else envelope.link.last
    content = hash_content(record)
    if number is not None and parts["r"].get(number) == content:
        return Ruling(Action.DROP, memory, "repeat")
    ruling = rule(parts["g"], envelope, record)
    if ruling.what not in {Action.ACCEPT, Action.HOLD}:
        return ruling._replace(memory=memory)
    contents = {}
    if not _resets(envelope):
        contents = {other: earlier for other, earlier in parts["r"].items() if other != number}
    if number is not None:
        contents[number] = content
    # The newest alone: the memory is stored with each state.
    newest = dict(list(contents.items())[-REMEMBERED:])
    return ruling._replace(memory={"r": newest, "g": ruling.memory})


def rule_until_snapshot(
    rule: GateRule, wraps_at: int | None, memory: Memory, envelope: Envelope, record: Record
) -> Ruling:
    """Updates are buffered until the snapshot of their session; those that it covers are dropped, the others applied.

    Memory is {"e": buffered updates, each with offset, number, first and previous} before the snapshot, {"q": its
    number, "g": the rule's} up to the next message that it does not cover, and the rule's from there on.
    """
    parts: dict[str, Any] = memory if isinstance(memory, dict) else {}
    early = parts.get("e", [])
    inner = parts.get("g") if parts else memory
    number = envelope.sequence if envelope.link is None else envelope.link.last
    is_snapshot = envelope.kind is Kind.SNAPSHOT
    if number is None or envelope.kind is Kind.END:
        return rule(inner, envelope, record)
    if inner is None and not is_snapshot:
        return _waits(early, wraps_at, number, envelope, record)
    if is_snapshot and (inner is None or envelope.restarts_sequence):
        ruling = _begun_with_early(rule, wraps_at, early, envelope, record)
        if ruling.what is not Action.ACCEPT:
            ruling = ruling._replace(memory=memory)
        return ruling
    if "q" in parts and not is_snapshot and count_on(number, parts["q"], wraps_at) <= parts["q"]:
        return Ruling(Action.DROP, memory, "stale")
    ruling = rule(inner, envelope, record)
    if "q" in parts and is_snapshot and ruling.what is Action.ACCEPT:
        return ruling._replace(memory={"q": number, "g": ruling.memory})
    return ruling


def _waits(early: list[list[Any]], wraps_at: int | None, number: int, envelope: Envelope, record: Record) -> Ruling:
    first = None
    previous = None
    if envelope.link is not None:
        first = envelope.link.first
        previous = envelope.link.previous
    if not all(is_64_bit(each) for each in (number, first, previous) if each is not None):
        return refuse_proof("number out of range")
    if not may_be_sent(number, wraps_at):
        return refuse_proof("number out of range")
    # Further apart, the order of numbers that wrap around is ambiguous.
    if early and wraps_at is not None and (number - early[0][1]) % wraps_at >= wraps_at // 2:
        return refuse_proof("no snapshot")
    # Bounded: the snapshot may never arrive.
    if len(early) == WAITING_MAX:
        return refuse_proof("no snapshot")
    if early and count_on(number, early[-1][1], wraps_at) <= early[-1][1]:
        return refuse_proof("repeat" if number == early[-1][1] else "sequence goes back")
    return Ruling(Action.HOLD, {"e": [*early, [record.offset, number, first, previous]]}, "buffered")


def _begun_with_early(
    rule: GateRule, wraps_at: int | None, early: list[list[Any]], envelope: Envelope, record: Record
) -> Ruling:
    """A snapshot; it covers the buffered updates, or they follow it one by one."""
    begun = rule(None, envelope, record)
    number = envelope.sequence if envelope.link is None else envelope.link.last
    if begun.what is not Action.ACCEPT or number is None:
        return begun
    memory = begun.memory
    stale = list[int]()
    after = list[int]()
    for offset, early_number, first, previous in early:
        if count_on(early_number, number, wraps_at) <= number:
            stale.append(offset)
            continue
        if envelope.link is None:
            update = Envelope(envelope.session, sequence=early_number)
        else:
            update = Envelope(envelope.session, link=Link(early_number, first=first, previous=previous))
        ruling = rule(memory, update, record)
        if ruling.what is not Action.ACCEPT:
            return ruling
        after.append(offset)
        memory = ruling.memory
    if not after:  # more updates that the snapshot covers may follow
        memory = {"q": number, "g": memory}
    return Ruling(Action.ACCEPT, memory, after=tuple(after), stale=tuple(stale))


_RULES: dict[str, GateRule] = {
    "Sequence": rule_by_sequence,
    "Linked": rule_by_link,
    "Checksum": rule_by_count,
    "LogOnly": rule_by_count,
}


def _resets(envelope: Envelope) -> bool:
    return envelope.restarts_sequence


def _begun(envelope: Envelope, number: int, memory: Memory, wraps_at: int | None = None) -> Ruling:
    if envelope.kind is not Kind.SNAPSHOT:
        return refuse_proof("unknown session")
    if may_be_sent(number, wraps_at):
        return Ruling(Action.ACCEPT, memory)
    return refuse_proof("number out of range")


def _follows(link: Link, last: int) -> bool:
    return link.previous == last if link.previous is not None else link.first == last + 1


def _reaches_over(link: Link, last: int) -> bool:
    """Of a snapshot fetched separately: the first update after it may start before the snapshot's end."""
    if link.first is None:
        return False
    needed = last if link.previous is not None else last + 1
    return link.first <= needed <= link.last


def _why(link: Link, last: int, before: int | None) -> str:
    """Why a message does not follow, by the newest id that must precede it."""
    if link.last <= last:
        return "repeat" if link.last == last else "sequence goes back"
    return "gap" if before is not None and before > last else "broken link"


def _runs_forward(link: Link) -> bool:
    begins = [number for number in (link.first,) if number is not None and number > link.last]
    behind = link.previous is not None and link.previous >= link.last
    return not begins and not behind and link.last <= LARGEST


def _number(memory: Memory) -> int:
    if not isinstance(memory, int):
        raise TypeError(f"a session's last number, not {memory!r}")
    return memory


def make_rules(
    integrity: Any, moment: ReplayWatermark, *, joined: bool = False, policy: ViolationPolicy | None = None
) -> GateRules:
    """The rules of a stream's integrity class, for the partition of a watermark.

    Args:
        integrity: The declared class.
        moment: The watermark of the partition.
        joined: Its log was not read from its start.
        policy: Its policy on violations at that time; None for the declared policy.

    Raises:
        NotProvable: The class has no independent gate.
    """
    if policy is None:
        policy = _find_policy(integrity)
    rules = _rules_of(integrity, moment, policy)
    if joined:
        rules = _in_joined_log(rules, integrity)
    start = getattr(getattr(integrity, "session_start", None), "name", "SNAPSHOT")
    if start not in {"SNAPSHOT", "FIRST_MESSAGE"}:
        raise_not_provable(f"session_start={start}")
    if start == "SNAPSHOT":
        return rules
    rules = msgspec.structs.replace(rules, at_first=True, rule=partial(begin_with_any, rules))
    if type(integrity).__name__ == "Strict":
        return rules
    return msgspec.structs.replace(rules, undecodable=GateAnswer.QUARANTINE)  # a lost message is tolerated


class RulesInForce:
    """The rules of a class for one partition, by batch: the policy on violations may have changed between runs."""

    def __init__(
        self, integrity: Any, policies: Sequence[PolicyChange], moment: ReplayWatermark, *, joined: bool
    ) -> None:
        """For the arguments see `make_rules`.

        Raises:
            NotProvable: The class has no independent gate.
        """
        self._policies = policies
        self._declared = make_rules(integrity, moment, joined=joined)
        self._rules = dict[ViolationPolicy, GateRules]()
        for change in policies:
            if change.policy not in self._rules:
                self._rules[change.policy] = make_rules(integrity, moment, joined=joined, policy=change.policy)

    def find(self, batch: int) -> GateRules:
        """The rules of a batch; the declared rules if its policy is unknown."""
        count = bisect_right(self._policies, batch, key=lambda each: each.first_batch)
        if not count:
            return self._declared
        return self._rules[self._policies[count - 1].policy]


def _in_joined_log(rules: GateRules, integrity: Any) -> GateRules:
    needs_no_snapshot = getattr(getattr(integrity, "session_start", None), "name", "") == "FIRST_MESSAGE"
    takes_all = needs_no_snapshot or rules.passes_unknown or getattr(integrity, "buffer_until_snapshot", False)
    return msgspec.structs.replace(rules, rule=partial(rule_in_joined_log, rules.rule, skips=not takes_all))


def rule_in_joined_log(rule: GateRule, memory: Memory, envelope: Envelope, record: Record, *, skips: bool) -> Ruling:
    """Sessions may have started before the log was joined: no first messages without a snapshot, and no counts."""
    if skips and memory is None and envelope.kind not in {Kind.SNAPSHOT, Kind.SNAPSHOT_PART}:
        return Ruling(Action.SKIP, None, "before the first snapshot")
    return rule(memory, msgspec.structs.replace(envelope, count=None), record)


def begin_with_any(rules: GateRules, memory: Memory, envelope: Envelope, record: Record) -> Ruling:
    """Without a snapshot requirement: an update starts an unknown session unless it is late; an end ends nothing.

    Memory is {"f": True} of a session that another class has left: its evidence starts with its next message.
    """
    rule = rules.rule
    if isinstance(memory, dict) and "f" in memory:
        return _begin_again(rules, memory, envelope, record)
    if memory is not None or envelope.kind not in {Kind.UPDATE, Kind.END}:
        return rule(memory, envelope, record)
    # As the class judges it: only an unknown session is started here.
    as_it_is = rule(None, envelope, record)
    if as_it_is.cause != "unknown session":
        return as_it_is
    if (ruling := _find_late_or_waiting(rules, None, envelope, record)) is not None:
        return ruling
    begun = rule(None, msgspec.structs.replace(envelope, kind=Kind.SNAPSHOT), record)
    ends = envelope.kind is Kind.END and begun.what is Action.ACCEPT
    if ends:
        return Ruling(Action.ACCEPT)
    return begun


def _begin_again(rules: GateRules, memory: Memory, envelope: Envelope, record: Record) -> Ruling:
    begun = rules.rule(None, msgspec.structs.replace(envelope, kind=Kind.SNAPSHOT), record)
    if begun.what is not Action.ACCEPT:
        return begun
    return _find_late_or_waiting(rules, memory, envelope, record) or begun


def _find_late_or_waiting(rules: GateRules, memory: Memory, envelope: Envelope, record: Record) -> Ruling | None:
    """The ruling on an update that starts no session: beyond the bound, or buffered for its order; None for others."""
    if envelope.kind is not Kind.UPDATE:
        return None
    if rules.is_late is not None and rules.is_late(envelope, record):
        return Ruling(Action.LATE, memory, "late")
    if rules.begins_later is None:
        return None
    return rules.begins_later(envelope, record)


def _find_policy(integrity: Any) -> ViolationPolicy:
    name = type(integrity).__name__
    policy = type(getattr(integrity, "on_violation", None)).__name__
    if policy not in {"Halt", "Suspend"}:
        raise_not_provable(f"{name}(on_violation={policy})")
    growth = getattr(getattr(integrity, "on_growth", None), "name", "VIOLATION")
    return ViolationPolicy(policy == "Suspend", growth == "RESTART_SESSIONS")


def _rules_of(integrity: Any, moment: ReplayWatermark, policy: ViolationPolicy) -> GateRules:
    name = type(integrity).__name__
    tolerates_violations = policy.suspends
    restarts = policy.restarts_on_growth
    if name == "Strict":
        return make_strict_rules(integrity, tolerates_violations=tolerates_violations, restarts_on_growth=restarts)
    if name == "Ordered":
        return make_ordered_rules(integrity, tolerates_violations=tolerates_violations, restarts_on_growth=restarts)
    if name == "Once":
        return make_once_rules(integrity, tolerates_violations=tolerates_violations)
    if name == "FuzzyWindow":
        return window.make_window_rules(
            integrity, moment, tolerates_violations=tolerates_violations, restarts_on_growth=restarts
        )
    if name == "NoIntegrity":
        return make_none_rules(integrity)
    return raise_not_provable(f"the class {name}")
