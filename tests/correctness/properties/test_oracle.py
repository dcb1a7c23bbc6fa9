"""`Ordered` compared with a small model: the same rows and states of random messages, in any split."""

from __future__ import annotations

import json

from hypothesis import given

from lockstep.testing import Event, run
from lockstep.testing import SentMessage as Message
from tests.correctness.properties.feeds import CUTS, STEPS, Step, cut, feed
from tests.correctness.properties.probes import PLACELESS, REFUSED, STREAMS, WRONG_ROW, Sent

Rows = list[tuple[str, list[int]]]


def plain(messages: list[Message[Sent]]) -> tuple[Rows, dict[str, list[int]]]:
    """Return rows and values by session; `waits` are the sessions that wait for a snapshot."""
    rows: Rows = []
    values: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    waits: set[str] = set()
    for message in messages:
        key = str(message.key)
        sent = _decoded(message.value)
        if sent is None or sent["v"] == PLACELESS:
            waits |= values.keys()
            continue
        kind = sent["kind"]
        number = int(str(sent["n"]))
        value = int(str(sent["v"]))
        begins = kind == "snapshot"
        known = key in values and key not in waits
        if kind == "skip" or not (begins or (known and number > last[key])):
            continue
        if kind == "end":
            del values[key], last[key]
        elif value in {REFUSED, WRONG_ROW}:
            waits |= {key} & values.keys()
        else:
            waits -= {key} if begins else set()
            values[key], last[key] = [value] if begins else [*values[key], value], number
            rows.append(("open" if begins else "apply", values[key]))
    return rows, values


def _decoded(value: object) -> dict[str, object] | None:
    try:
        return dict(json.loads(value if isinstance(value, bytes) else b""))
    except ValueError:
        return None


@given(steps=STEPS, cuts=CUTS)
def test_ordered_comes_to_what_a_plain_model_says(steps: list[Step], cuts: list[tuple[int, Event]]) -> None:
    messages = feed([step for step in steps if step[1] != "part"])
    ran = run(STREAMS["ordered"], *cut(messages, cuts))
    rows, values = plain(messages)
    assert [(row.what, row.values) for row in ran.rows] == rows
    assert {session: state.values for session, state in ran.states.items()} == values
