"""The number of generated examples of a property, by tier."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""The examples of a property in `make test-all` (tests/conftest.py)."""


def scale_examples(thorough: int) -> int:
    """The examples of a property that has `thorough` of them in `make test-all`, for the profile in use."""
    return max(1, thorough * settings().max_examples // THOROUGH)
