"""Great Expectations without its warnings."""

from __future__ import annotations

import warnings

import pytest


@pytest.fixture(scope="session", autouse=True)
def _great_expectations() -> None:
    """Import Great Expectations once: it uses deprecated modules of Python, and warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations  # noqa: F401  # imported for its side effects
