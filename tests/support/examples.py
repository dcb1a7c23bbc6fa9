"""The number of generated examples of a property, by tier."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""The examples of a property in `make test-all` (tests/conftest.py)."""


def scale_examples(thorough: int, usual: int | None = None) -> int:
    """Scale the number of examples of a property to the profile in use.

    Args:
        thorough: Number of examples in `make test-all`.
        usual: Number of examples in `make test`, if each is expensive.
    """
    if usual is not None and settings().max_examples < THOROUGH:
        return usual
    return max(1, thorough * settings().max_examples // THOROUGH)
