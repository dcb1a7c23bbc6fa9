"""Once, said again: every message exactly once, in any order, as far back as ids are remembered."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import Any

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate.contract import Answer, Memory, Rules, Ruling, What, refuse
from lockstep.operations.verify.second_gate.numbers import content_of


def rules(integrity: Any, *, bears: bool) -> Rules:
    """The rules of a declared `Once`."""
    answer = Answer.SUSPEND if bears else Answer.STOP
    return Rules(
        rule=partial(by_id, keep_ids=integrity.keep_ids),
        undecodable=Answer.QUARANTINE,
        raised=Answer.QUARANTINE,
        hole=answer,
        expired=answer,
        grew=Answer.COUNT,
        bears=bears,
        passes_unknown=True,
        of_one_partition=False,
    )


def by_id(memory: Memory, place: Place, record: Record, keep_ids: int) -> Ruling:
    """Memory is {"n": messages of the session, "ids": content of the newest by a digest of their id}."""
    met: dict[str, Any] = memory if isinstance(memory, dict) else {"n": 0, "ids": {}}
    named = place.id
    if named is None and place.resets and place.kind is Kind.SNAPSHOT:
        met = {"n": met["n"], "ids": {}}  # the producer says that these are other numbers than those before
    key = place.sequence if named is None else named
    identity = None if key is None else blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    known = met["ids"].get(identity)
    if known is not None and known != content_of(record):
        return refuse("same id, other content")
    if known is not None:  # a number alone does not say that it is the same message
        return refuse("repeat") if named is None else Ruling(What.DROP, memory, "repeat")
    said = place.count if place.kind is Kind.END else None
    if said not in {None, met["n"] + 1}:
        return refuse("ids missing")
    ids = met["ids"] if identity is None else {**met["ids"], identity: content_of(record)}
    for oldest in list(ids)[: max(0, len(ids) - keep_ids)]:
        del ids[oldest]
    return Ruling(What.ACCEPT, {"n": met["n"] + 1, "ids": ids})
