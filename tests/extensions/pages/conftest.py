"""A user's project outside of the library, with the code of the pages below docs/how-to-add."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.streams.tutorial.conftest import BLOCK, ROOT, Reader

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = ROOT / "docs" / "how-to-add" / "command.md"
PAGES = sorted((ROOT / "docs" / "how-to-add").glob("*.md"))


@pytest.fixture(scope="session")
def blocks() -> dict[str, str]:
    """The Python blocks of all pages, by the file named in their first line."""
    found: dict[str, str] = {}
    for page in PAGES:
        found.update(BLOCK.findall(page.read_text()))
    return found


@pytest.fixture
def project(tmp_path: Path, blocks: dict[str, str]) -> Reader:
    """A project of `lockstep init` with the files of all pages."""
    reader = Reader(tmp_path / "project")
    reader.folder.mkdir()
    reader.does("lockstep", "init", str(reader.folder))
    for name, code in blocks.items():
        path = reader.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    settings = reader.folder / "lockstep.toml"
    (extensions,) = re.findall(r"^```toml\n(extensions = .*)\n```$", COMMAND.read_text(), re.MULTILINE)
    settings.write_text(f"{extensions}\n{settings.read_text()}")
    return reader
