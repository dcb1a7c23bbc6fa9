"""The second gate of a declared class, found by its name: the proof knows nothing of the engine's own classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate import none, once, ordered, strict, window
from lockstep.operations.verify.second_gate.contract import Memory, Rule, Rules, Ruling, What, not_provable
from lockstep.operations.verify.second_gate.moment import Moment


def rules_of(integrity: Any, moment: Moment) -> Rules:
    """The rules of a stream's integrity class, in the partition of a watermark.

    Raises:
        NotProvable: There is no second gate for it.
    """
    rules = _rules_of(integrity, moment)
    start = getattr(getattr(integrity, "session_start", None), "name", "SNAPSHOT")
    if start not in {"SNAPSHOT", "FIRST_MESSAGE"}:
        not_provable(f"session_start={start}")
    if start == "SNAPSHOT":
        return rules
    return msgspec.structs.replace(rules, at_first=True, rule=partial(begun_by_any, rules.rule))


def begun_by_any(rule: Rule, memory: Memory, place: Place, record: Record) -> Ruling:
    """Where no snapshot is needed: an update begins a session that is not known, and an end of one ends nothing."""
    if memory is not None or place.kind not in {Kind.UPDATE, Kind.END}:
        return rule(memory, place, record)
    as_it_is = rule(None, place, record)
    if as_it_is.cause != "unknown session":
        return as_it_is
    begun = rule(None, msgspec.structs.replace(place, kind=Kind.SNAPSHOT), record)
    ends = place.kind is Kind.END and begun.what is What.ACCEPT
    return Ruling(What.ACCEPT) if ends else begun


def _rules_of(integrity: Any, moment: Moment) -> Rules:
    name, policy = type(integrity).__name__, type(getattr(integrity, "on_violation", None)).__name__
    if policy not in {"Halt", "Suspend"}:
        not_provable(f"{name}(on_violation={policy})")
    growth = getattr(getattr(integrity, "on_growth", None), "name", "VIOLATION")
    bears, restarts = policy == "Suspend", growth == "RESTART_SESSIONS"
    if name == "Strict":
        return strict.rules(integrity, bears=bears, restarts_on_growth=restarts)
    if name == "Ordered":
        return ordered.rules(integrity, bears=bears, restarts_on_growth=restarts)
    if name == "Once":
        return once.rules(integrity, bears=bears)
    if name == "FuzzyWindow":
        return window.rules(integrity, moment, bears=bears, restarts_on_growth=restarts)
    if name == "NoIntegrity":
        return none.rules(integrity)
    return not_provable(f"the class {name}")
