"""The reference page is that of the docstrings, and leaves no public name out."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[3]
TOOL = runpy.run_path(str(ROOT / "tools" / "reference.py"))
PAGE = (ROOT / "docs" / "reference.md").read_text()


def test_the_page_is_the_one_that_the_docstrings_make() -> None:
    """If not: .venv/bin/python tools/reference.py > docs/reference.md."""
    assert TOOL["page"]() == PAGE


def test_every_public_name_has_its_entry() -> None:
    modules: tuple[ModuleType, ...] = TOOL["MODULES"]
    for module in modules:
        section = PAGE.split(f"\n## {module.__name__}\n")[1].split("\n## ")[0]
        assert set(module.__all__) - {"__version__"} <= set(re.findall(r"^### (\w+)$", section, re.MULTILINE))
    assert "| `Kind.SKIP` |" in PAGE
    assert "`Annotated[Decimal, DecimalType(18, 8)]` | `decimal128(18, 8)`" in PAGE


def test_what_a_user_reads_of_a_value_and_the_other_ways_to_make_one_have_their_entries() -> None:
    for entry in ("`Record.key: bytes | None`", "`RunResult.rows: list[R]`", "`Window.start: datetime`"):
        assert f"\n**{entry}**\n" in PAGE
    assert "\n**`Expectation.from_gx(expectation: Any," in PAGE
