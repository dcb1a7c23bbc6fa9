"""A public repository must not contain secrets, paths of one machine, or the host of a registry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# Each pattern is split, so that this file does not match it.
FORBIDDEN = {
    "private key": r"-----BEGIN [A-Z ]*PRIVATE " + r"KEY-----",
    "access key": r"\b(?:AKIA|ASIA)" + r"[0-9A-Z]{16}\b",
    "token": r"\b(?:gh[pousr]_|glpat-|xox[abprs]-)" + r"[0-9A-Za-z-]{16,}",
    "written password": r"(?i)\b(?:password|secret|api_key)\s*=\s*" + r"[\"'][^\"'{}<>$ ]{8,}[\"']",
    "password in an address": r"[a-z]+://[^\s/:@\"'{}]+:" + r"[^\s/@\"'{}]+@",
    "path of one machine": r"(?<![\w.$~}])/(?:root|home/\w+|Users/\w+|work/(?:main|shared)|tmp/proto)" + r"/",
    "registry host": r"(?:files\.python"
    r"hosted|py"
    r"pi\.org|repo1\.ma"
    r"ven|registry\.n"
    r"pmjs)",
}

HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ANCHOR = re.compile(r"\[[^\]]*\]\((?!https?://)([^)\s#]*)#([^)\s]*)\)")
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:|#)([^)\s#]+)(?:#[^)\s]*)?\)")


def text_of(path: Path) -> str | None:
    """Return a file's text, or None if it is not text (recordings, images)."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def lines_with(pattern: str, files: list[Path]) -> list[str]:
    numbered = ((path, enumerate((text_of(path) or "").splitlines(), start=1)) for path in files)
    return [f"{path}:{number}" for path, lines in numbered for number, line in lines if re.search(pattern, line)]


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_file_holds_what_belongs_to_one_person_or_machine(kind: str, tracked: list[Path]) -> None:
    assert lines_with(FORBIDDEN[kind], tracked) == []


def test_every_relative_link_in_the_documents_leads_to_a_file(tracked: list[Path]) -> None:
    broken = [
        f"{page}: {target}"
        for page in tracked
        if page.suffix == ".md"
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def test_every_anchor_in_the_documents_is_that_of_a_heading(tracked: list[Path]) -> None:
    broken = [
        f"{page}: {target}#{anchor}"
        for page in tracked
        if page.suffix == ".md"
        for target, anchor in ANCHOR.findall(page.read_text())
        if (whole := page.parent / target if target else page).suffix == ".md" and anchor not in list_anchors(whole)
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("private key", "-----BEGIN RSA PRIVATE " + "KEY-----"),
        ("access key", "AKIA" + "ABCDEFGHIJKLMNOP"),
        ("written password", "password = " + "'correcthorse'"),
        ("password in an address", "kafka://user:" + "secret@host"),
        ("path of one machine", "see /" + "home/someone/project"),
        ("registry host", "https://py" + "pi.org/simple"),
    ],
)
def test_the_patterns_find_what_they_are_for(kind: str, line: str) -> None:
    assert re.search(FORBIDDEN[kind], line)
