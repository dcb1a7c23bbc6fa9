"""The examples of docs/decoders.md work: streams are declared, settings load, every cause is explained."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep import Stream
from lockstep.declare.decoders.base import DecodeCause
from lockstep.decoders import Function
from lockstep.engine.driver.run import make_registry
from lockstep.settings import load_settings
from lockstep.testing import run
from tests.support.decoders import panel_pb2

if TYPE_CHECKING:
    from types import ModuleType

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "decoders.md").read_text()
BLOCKS = dict(re.findall(r"^```(.+?)$\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def as_module(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the code of the page as a user's module."""
    name = f"page_{block.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(BLOCKS[block])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "panel_pb2", panel_pb2)
    return importlib.import_module(name)


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_the_streams_of_the_page_are_declared(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = as_module(f"python {kind}", tmp_path, monkeypatch)
    assert isinstance(module.panels, Stream)
    assert type(module.panels.decoder).__name__.lower() == kind


def test_the_function_of_the_page_decodes_and_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = as_module("python function", tmp_path, monkeypatch)
    assert isinstance(module.decoder, Function)
    decode = module.decoder.build(module.Reading)
    assert decode(b"sensor-11.5") == module.Reading("sensor-1", 1.5)
    with pytest.raises(ValueError, match="3 bytes are no reading"):
        decode(b"abc")


def test_the_stream_of_the_page_ends_a_session_by_a_tombstone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = as_module("python tombstones", tmp_path, monkeypatch)
    ran = run(module.accounts, module.Account(3), module.Account(4), None, module.Account(5), key="k")
    assert [row.balance for row in ran.rows] == [3, 4, None, 5]
    assert ran.states == {"k": module.Account(5)}


def test_the_settings_of_the_page_name_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / "lockstep.toml").write_text(block)
        registry = make_registry(load_settings().registry)
        assert registry is not None
        found.append((registry.user, registry.password_from, registry.client and registry.client.client_id))
    assert found == [("lockstep", "env:REGISTRY_SECRET", None), ("", "", "lockstep")]


@pytest.mark.parametrize("cause", DecodeCause)
def test_every_cause_is_on_the_page(cause: DecodeCause) -> None:
    assert str(cause) in PAGE
