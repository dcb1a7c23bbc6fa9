"""The page of settings is that of the docstrings, and its examples are valid."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from lockstep.settings import Settings, load_settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "settings.md").read_text()


def test_the_page_is_the_one_that_the_docstrings_make() -> None:
    """If not: .venv/bin/python tools/settings_page.py > docs/settings.md."""
    made: str = runpy.run_path(str(ROOT / "tools" / "settings_page.py"))["page"]()
    assert made == PAGE


def test_every_setting_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE or f"## {name}" in PAGE for name in Settings.model_fields)


def test_the_example_is_a_valid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"^```toml$\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "lockstep.toml"
    file.write_text(example)
    monkeypatch.setenv("LOCKSTEP_SETTINGS", str(file))
    settings = load_settings()
    assert settings.kafka.secrets == {"sasl.password": "file:/run/secrets/kafka-password"}
    assert settings.spark.master == "local[4,3]"


def test_the_example_of_a_variable_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, value),) = re.findall(r"`(LOCKSTEP_\w+)='(.*)'`", PAGE)
    monkeypatch.setenv(name, value)
    assert load_settings().kafka.options == {"client.rack": "eu-central-1a"}
