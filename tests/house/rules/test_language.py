"""The text of library and documents uses the field's terms; words of a private language are named with their line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Each has a plain word: re-created, fixed, in addition, has, reported, buffered, continuous, no one, request, context.
BANNED = re.compile(
    r"\b(anew|mend(s|ed|ing|able)?|beside|bears?|told|(held|holds?) back|for ever|"
    r"nobody|the very|wish(es|ed)?|hands)\b",
    re.IGNORECASE,
)
FOLDERS = ("platform", "assets", "jobs", "sensors", "benchmarks", "docs")
# Decisions stay unchanged; the matrix of faults is generated from the names of tests.
KEPT = ("docs/decisions/", "docs/faults.md")


def test_no_text_uses_a_word_that_has_a_plain_one(root: Path, tracked: list[Path]) -> None:
    texts = {str(path.relative_to(root)): path for path in tracked if path.suffix in {".py", ".md"}}
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, path in texts.items()
        if (name.startswith(FOLDERS) or name == "README.md") and not name.startswith(KEPT)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BANNED.search(line)
    ]
    assert found == []
