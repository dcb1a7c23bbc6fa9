"""The second gate of a declared class, found by its name: the proof knows nothing of the engine's own classes."""

from __future__ import annotations

from typing import Any

from lockstep.operations.verify.second_gate import none, once, ordered, strict, window
from lockstep.operations.verify.second_gate.contract import Rules, not_provable
from lockstep.operations.verify.second_gate.moment import Moment


def rules_of(integrity: Any, moment: Moment) -> Rules:
    """The rules of a stream's integrity class, in the partition of a watermark.

    Raises:
        NotProvable: There is no second gate for it.
    """
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
        return none.rules()
    return not_provable(f"the class {name}")
