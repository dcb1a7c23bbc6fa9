"""The number of generated examples of a property, by tier."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""The examples of a property in `make test-all` (tests/conftest.py)."""


def scale_examples(thorough: int, usual: int | None = None) -> int:
    """The examples of a property that has `thorough` of them in `make test-all`, for the profile in use.

    Args:
        thorough: Its examples in `make test-all`.
        usual: Its examples in `make test`, if each of them is expensive.
    """
    if usual is not None and settings().max_examples < THOROUGH:
        return usual
    return max(1, thorough * settings().max_examples // THOROUGH)
