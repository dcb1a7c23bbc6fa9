"""The tutorial's code, written into a separate folder as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "add-a-stream.md"
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Reader:
    """A person who follows the page in a folder.

    Attributes:
        folder: The folder; it precedes the repository on the import path.
        environment: The exported variables.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def does(self, *command: str, code: int = 0) -> str:
        """Run a command of the environment and return its output. Fail if the exit code is not as expected."""
        tool = Path(sys.executable).with_name(command[0])
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        environment = {**os.environ, **self.environment, "PYTHONPATH": path, "COLUMNS": "200"}
        whole = [str(tool), *command[1:]]
        said = subprocess.run(whole, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert said.returncode == code, said.stdout + said.stderr
        return said.stdout + said.stderr


@pytest.fixture(scope="session")
def blocks() -> dict[str, str]:
    """The page's Python blocks, by the file named in their first line."""
    return dict(BLOCK.findall(PAGE.read_text()))


@pytest.fixture
def reader(tmp_path: Path, blocks: dict[str, str]) -> Reader:
    """A reader who has written all files, and edited definitions.py according to the page."""
    for name, code in blocks.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code if name != "definitions.py" else edited(code))
    return Reader(tmp_path)


def edited(block: str) -> str:
    """Add the import and the page's line of streams to the repository's definitions.py."""
    the_import, the_streams = block.strip().split("\n\n")
    source, replaced = re.subn(r"^STREAMS\b.*$", the_streams, (ROOT / "definitions.py").read_text(), flags=re.MULTILINE)
    assert replaced == 1
    return source.replace("from assets.order_books", f"{the_import}\nfrom assets.order_books")
