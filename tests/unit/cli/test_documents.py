"""Scripts read the documents of `--json` and call commands with options: no name changes unnoticed."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import pytest

from tests.unit.cli.documents import Documents, describe_interface, has_json, list_commands, list_documents

if TYPE_CHECKING:
    from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "interface.txt"
COMMANDS = list_commands()
WITH_JSON = [name for name, command in COMMANDS.items() if has_json(command)]


class Colour(Enum):
    RED = "red"


class Inner(msgspec.Struct, tag="inner", rename={"kind": "Kind"}):
    kind: Colour


class Outer(msgspec.Struct):
    inner: Inner | None
    pairs: tuple[tuple[str, Literal[1, 2]], ...]
    by_name: dict[str, list[Inner]]


def test_commands_and_their_documents_are_as_scripts_know_them(request: pytest.FixtureRequest) -> None:
    found = describe_interface()
    if request.config.getoption("--write-golden"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_every_command_prints_documents() -> None:
    assert sorted(COMMANDS) == sorted(WITH_JSON)


@pytest.mark.parametrize("name", WITH_JSON)
def test_each_command_with_json_has_a_document_of_named_fields(name: str) -> None:
    documents = list_documents(COMMANDS[name])
    assert documents
    assert [kind for kind in documents if _names_no_fields(kind)] == []


def _names_no_fields(kind: Any) -> bool:
    documents = Documents()
    documents.describe(kind)
    return not documents.structs


def test_a_document_is_described_as_it_is_encoded() -> None:
    """A description has the JSON names, the tag and every nested struct."""
    documents = Documents()
    assert documents.describe(list[Outer]) == "array[Outer]"
    documents.finish()
    assert documents.structs == {
        "Outer": [
            "Outer",
            "    inner: Inner | null",
            "    pairs: array[array[str, 1 | 2]]",
            "    by_name: object[str, array[Inner]]",
        ],
        "Inner": ["Inner", "    type: 'inner'", "    Kind: 'red'"],
    }
