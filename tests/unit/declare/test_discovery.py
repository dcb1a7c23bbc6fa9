"""Code named by a folder, a file or a module is found, or refused with the correct form."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from lockstep import Limits, Sequence, Strict, Suspend
from lockstep.declare.discovery import ModuleBroken, digest_code, find_streams, load_streams
from lockstep.errors import DeclarationError, SettingsError
from lockstep.rules import InRange, OnViolation
from tests.support.adding_stream import Adding, Mended, adding

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("code", ["assets", "./assets"])
def test_the_folder_assets_itself_is_refused_and_the_one_that_holds_it_named(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "assets").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="is a folder without assets/") as refused:
        load_streams(code)
    assert refused.value.next_step == f"name the folder that holds assets/: {tmp_path}"


def test_a_folder_without_assets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is a folder without assets/") as refused:
        load_streams(str(tmp_path))
    assert refused.value.next_step == "name the folder that holds assets/, a file in it, or the name of a module"


def test_code_that_is_nowhere_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"no code at 'no\.such\.module'"):
        load_streams("no.such.module")


BROKEN = {
    "a syntax error": ("def fold(:\n", r"assets_broken/broken.py cannot be imported: SyntaxError: .*line 1\)"),
    "an exception": (
        "\nraise ValueError('no')\n",
        r"assets_broken/broken.py cannot be imported: ValueError: no \(line 2\)",
    ),
    "a wrong declaration": (
        "from lockstep import Topics\nTopics(pattern='(')\n",
        r"assets_broken/broken.py cannot be imported: Topics.pattern = '\('.*\(line 2\)",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_with_its_line_and_the_others_can_be_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, named = BROKEN[kind]
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "assets_broken").mkdir()
    (tmp_path / "assets_broken" / "broken.py").write_text(source)
    (tmp_path / "assets_broken" / "whole.py").write_text("from assets.order_books import order_books\n")
    with pytest.raises(ModuleBroken, match=named):
        find_streams(tmp_path, "assets_broken")
    broken = list[ModuleBroken]()
    assert list(find_streams(tmp_path, "assets_broken", broken.append)) == ["order_books"]
    assert [each.file for each in broken] == ["assets_broken/broken.py"]
    for name in [name for name in sys.modules if name.startswith("assets_broken")]:
        monkeypatch.delitem(sys.modules, name)


def test_streams_of_one_name_are_refused_with_the_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied file still has the stream name of its original."""
    write_assets(tmp_path, monkeypatch, north=COPIED, south=COPIED)
    with pytest.raises(DeclarationError, match=r"two streams, in assets_more\.north and assets_more\.south"):
        find_streams(tmp_path, "assets_more")


@pytest.mark.parametrize("several", ["[{}]", "({},)", "{{'south': {}}}"])
def test_streams_in_a_list_a_tuple_or_a_dict_are_found(
    several: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams made in a loop over plants must be known to every command, not only to Dagster."""
    made = several.format("dataclasses.replace(order_books, name='south')")
    source = f"import dataclasses\nfrom assets.order_books import order_books\nPLANTS = {made}\n"
    write_assets(tmp_path, monkeypatch, plants=source)
    assert list(find_streams(tmp_path, "assets_more")) == ["order_books", "south"]


def test_the_digest_of_the_code_covers_what_the_fold_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"plants": FOLD, "shared": "from assets_more import units\n", "units": "KELVIN = 273.15\n", "other": ""}
    write_assets(tmp_path, monkeypatch, **files)
    stream = find_streams(tmp_path, "assets_more")["plant"]
    digests = [digest_code(stream)]
    for name in ("other", "units", "shared", "plants"):
        with (tmp_path / "assets_more" / f"{name}.py").open("a") as file:
            file.write("# changed\n")
        digests.append(digest_code(stream))
    assert [after != before for before, after in pairwise(digests)] == [False, True, True, True]


class Scaled(Adding):
    """Values in another unit: the arguments decide the rows."""

    def __init__(self, factors: dict[str, int], names: frozenset[str] = frozenset()) -> None:
        self.factors = factors
        self.names = names


def test_all_of_a_declaration_that_decides_rows_is_part_of_the_digest() -> None:
    """Another class or instance, a rule that refuses rows and a limit that refuses messages change the digest."""
    stream = adding(r"t\..+", Strict(evidence=Sequence(), on_violation=Suspend()))
    refused = InRange("value", at_least=0, on_violation=OnViolation.QUARANTINE)
    others = (
        replace(stream, transform=Mended()),
        replace(stream, transform=Scaled({"a": 1})),
        replace(stream, transform=Scaled({"a": 2})),
        replace(stream, rules=[refused]),
        replace(stream, rules=[replace(refused, at_least=1)]),
        replace(stream, limits=Limits(message_bytes=1_000)),
    )
    assert len({digest_code(each) for each in (stream, *others)}) == 1 + len(others)


def test_what_decides_no_row_is_no_part_of_the_digest() -> None:
    """Neither does the order of a set's values, which differs between processes."""
    stream = adding(r"t\..+", transform=Scaled({"a": 1, "b": 2}, frozenset("abcdefgh")))
    same = Scaled({"b": 2, "a": 1}, frozenset(reversed("abcdefgh")))
    other = replace(stream, transform=same, rules=[InRange("value", at_least=0)], limits=Limits(batch_messages=10))
    assert digest_code(stream) == digest_code(other)


FOLD = """
from dataclasses import replace
from assets.order_books import OrderBook, order_books as of
from . import shared
class Plant(OrderBook):
    pass
plant = replace(of, name="plant", transform=Plant())
"""
COPIED = (
    "import dataclasses\nfrom assets.order_books import order_books as of\nplant = dataclasses.replace(of, name='p')\n"
)


def write_assets(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Write a package of streams in place of the package of the previous test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("assets_more")]:
        del sys.modules[name]
    (folder / "assets_more").mkdir()
    for name, source in files.items():
        (folder / "assets_more" / f"{name}.py").write_text(source)
