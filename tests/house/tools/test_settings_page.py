"""The page of settings matches the docstrings, and its examples are valid."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest
from pydantic import BaseModel

from lockstep import EventTime, Limits, Objectives, Stream
from lockstep.orchestration.table_asset import read_field_descriptions
from lockstep.settings import Settings, load_settings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "settings.md").read_text()
FOR_WHOM = re.compile(r"\bFor [a-z].+\.$")
PARTS = (field.annotation for field in Settings.model_fields.values())
GROUPS = [Settings, *(part for part in PARTS if isinstance(part, type) and issubclass(part, BaseModel))]


def test_the_page_is_the_one_that_the_docstrings_make() -> None:
    """To update: .venv/bin/python tools/settings_page.py > docs/settings.md."""
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


@pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.__name__)
def test_every_setting_says_who_needs_it(kind: type[BaseModel]) -> None:
    described = read_field_descriptions(kind)
    assert [name for name in kind.model_fields if not FOR_WHOM.search(described[name])] == []


@pytest.mark.parametrize("kind", [Stream, Limits, EventTime, Objectives], ids=lambda kind: kind.__name__)
def test_every_option_of_a_stream_says_who_needs_it(kind: type) -> None:
    described = read_field_descriptions(kind)
    assert [name for name in inspect.signature(kind).parameters if not FOR_WHOM.search(described[name])] == []
