"""Marks for tests that run both with and without `lockstep-native`."""

from __future__ import annotations

import pytest

from lockstep.native import extension

needs_extension = pytest.mark.skipif(extension is None, reason="not run: lockstep-native is not built here (no Rust)")
BOTH_WAYS = [pytest.param(False, id="python"), pytest.param(True, id="native", marks=needs_extension)]
"""Whether the extension is used."""
