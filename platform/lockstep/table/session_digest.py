"""The digest in place of an erased session, in the head, in the ledger and at targets of deliveries."""

from __future__ import annotations

import hashlib

DIGEST_CHARACTERS = 32
"""128 bits: no two sessions have the same one by chance."""


def compute_session_digest(table_id: str, session: str) -> str:
    """The digest of a session: of the table's id and its name.

    With the name, a process can find that it was erased, as `lockstep verify` does; the name cannot be read
    from it, and two tables have different digests of one name.
    """
    named = f"{table_id}\n{session}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(named).hexdigest()[:DIGEST_CHARACTERS]
