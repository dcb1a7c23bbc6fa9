"""The reference page matches the docstrings and has every public name."""

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
    """To update: .venv/bin/python tools/reference.py > docs/reference.md."""
    assert TOOL["page"]() == PAGE


def test_every_public_name_has_its_entry() -> None:
    modules: tuple[ModuleType, ...] = TOOL["MODULES"]
    for module in modules:
        section = PAGE.split(f"\n## {module.__name__}\n")[1].split("\n## ")[0]
        assert set(module.__all__) - {"__version__"} <= set(re.findall(r"^### (\w+)$", section, re.MULTILINE))
    assert "- `Kind.SKIP`: " in PAGE
    assert "`Annotated[Decimal, DecimalType(18, 8)]` | `decimal128(18, 8)`" in PAGE


def test_what_a_user_reads_of_a_value_and_the_other_ways_to_make_one_have_their_entries() -> None:
    for entry in ("`Record.key: bytes | None`", "`RunResult.rows: list[R]`", "`Window.start: datetime`"):
        assert f"\n**{entry}**\n" in PAGE
    assert "\n**`Expectation.from_gx(expectation: Any," in PAGE


def test_members_of_the_engine_are_left_out_and_exist() -> None:
    hidden: dict[str, set[str]] = TOOL["ENGINE_ONLY"]
    for name, members in hidden.items():
        kinds = [getattr(module, name) for module in TOOL["MODULES"] if hasattr(module, name)]
        assert [member for member in members if not hasattr(kinds[0], member)] == []
    assert "`Stream.shipped" not in PAGE
    assert "`FlatMap.on_update" not in PAGE
    assert "`WindowFold.add(" in PAGE
    assert all(hasattr(TOOL["Transform"], name) for name in TOOL["OVERRIDDEN"])


def test_arguments_of_every_rule_are_described_once() -> None:
    assert PAGE.count("- `blocking: bool = False`") == 1
    rule = PAGE.split("\n### NotNull\n")[1].split("\n### ")[0]
    assert re.findall("^- .*$", rule, re.MULTILINE) == ["- `column: str`"]


def test_parameters_have_types_defaults_and_texts() -> None:
    stream = PAGE.split("\n### Stream\n")[1].split("\n### ")[0]
    assert "By keyword:" in stream
    assert "- `current: bool = False`: Whether the table" in stream
    assert "By keyword except `target`, `at_most`:" not in PAGE
    assert "By keyword except `column`:\n\n- `column: str`\n- `at_least:" in PAGE


def test_constants_have_their_meaning() -> None:
    assert "### RESTART\n\nThe run ends after the batch" in PAGE


def test_tables_of_docstrings_keep_their_lines() -> None:
    rules = [line for line in PAGE.splitlines() if "|---" in line]
    assert rules
    assert [line for line in rules if set(line) > set("|-")] == []
