"""The recorded markets and a peer library's books of them, loaded once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.features.localdev.recordings import read_betting_market

if TYPE_CHECKING:
    from lockstep.features.localdev.recordings import Recorded

RECORDINGS = Path(__file__).parents[2] / "recordings" / "betfair"


@pytest.fixture(scope="session")
def recorded() -> tuple[Recorded, ...]:
    """The market that starts with an image."""
    return read_betting_market(RECORDINGS / "mcm_1.181223995.jsonl.gz")


@pytest.fixture(scope="session")
def peer() -> dict[str, Any]:
    """The peer's books of `recorded`, in full or as digests."""
    found: dict[str, Any] = json.loads((RECORDINGS / "mcm_1.181223995.peer_final.json").read_text())
    return found


@pytest.fixture(scope="session")
def basic() -> tuple[Recorded, ...]:
    """The historical market: last prices, no image."""
    return read_betting_market(RECORDINGS / "mcm_basic_1.132153978.jsonl.gz")


@pytest.fixture(scope="session")
def basic_books() -> list[dict[str, Any]]:
    """The peer's book after each message of `basic`."""
    with gzip.open(RECORDINGS / "mcm_basic_1.132153978.expected.json.gz") as books:
        found: list[dict[str, Any]] = json.load(books)
    return found
