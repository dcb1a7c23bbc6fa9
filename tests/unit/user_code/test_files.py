"""The digest of code names exactly its files: each byte counts, and order, times and caches do not."""

from __future__ import annotations

import os
import socket
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.user_code import files
from lockstep.user_code.files import CodeUnusable, digest_contents, list_code, read_code

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PROJECT = {
    "definitions.py": b"defs = 1\n",
    "pyproject.toml": b"[project]\n",
    "assets/orders.py": b"stream = 1\n",
    "assets/schemas/order.avsc": b"{}",
    "jobs/__init__.py": b"",
}
NOT_CODE = {
    "lockstep.toml": b"table_root = 'x'",
    "README.md": b"",
    "var/tables/part.parquet": b"rows",
    "tests/test_orders.py": b"",
    ".git/HEAD": b"ref",
    ".venv/lib/module.py": b"",
    "environment/pyvenv.cfg": b"",
    "environment/site.py": b"",
    "assets/environment/pyvenv.cfg": b"",
    "assets/environment/site.py": b"",
    "assets/__pycache__/orders.cpython-311.pyc": b"code",
    "assets/.orders.py.swp": b"",
    "assets/orders.pyc": b"",
}


def write_files(folder: Path, contents: Mapping[str, bytes]) -> Path:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def test_code_is_python_with_what_lies_beside_it(tmp_path: Path) -> None:
    write_files(tmp_path, {**PROJECT, **NOT_CODE})
    assert read_code(tmp_path).contents == PROJECT


def test_the_digest_ignores_order_times_and_modes(tmp_path: Path) -> None:
    first = write_files(tmp_path / "first", PROJECT)
    other = write_files(tmp_path / "other", {**dict(reversed(PROJECT.items())), **NOT_CODE})
    for path in (other / "assets").rglob("*.*"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert read_code(first).digest == read_code(other).digest


NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=8)
CONTENTS = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=8), max_size=6)


@given(first=CONTENTS, other=CONTENTS)
def test_equal_digests_are_of_equal_files(first: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert (digest_contents(first) == digest_contents(other)) == (first == other)


@given(contents=CONTENTS.filter(bool), data=st.data())
def test_each_byte_and_each_name_counts(contents: dict[str, bytes], data: st.DataObject) -> None:
    """A byte also counts if it moves between a name and its content, or between two files."""
    name = data.draw(st.sampled_from(sorted(contents)))
    changed = dict(contents)
    match data.draw(st.sampled_from(("more", "renamed", "moved", "gone"))):
        case "more":
            changed[name] += b"\0"
        case "renamed":
            changed[f"{name}x"] = changed.pop(name)
        case "moved":
            changed[f"{name}a"] = changed.pop(name).removeprefix(b"a")
        case _:
            del changed[name]
    assert digest_contents(changed) != digest_contents(contents)


def test_names_that_are_no_text_are_copied(tmp_path: Path) -> None:
    write_files(tmp_path, PROJECT)
    odd = os.fsdecode(b"assets/odd \xff\n name.txt")
    (tmp_path / odd).write_bytes(b"1")
    assert read_code(tmp_path).contents[odd] == b"1"


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside.py", "..", "/", "missing.py", "orders.py/.."])
def test_a_link_to_anything_but_a_file_of_the_project_is_refused(tmp_path: Path, target: str) -> None:
    folder = write_files(tmp_path / "project", PROJECT)
    (tmp_path / "outside.py").write_text("secret = 1")
    (folder / "assets" / "linked.py").symlink_to(target)
    with pytest.raises(CodeUnusable, match=r"linked\.py' is a link to"):
        read_code(folder)


def test_what_is_no_code_in_the_folder_of_the_project_stops_nothing(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "project", PROJECT)
    write_files(tmp_path, {"disk/part.parquet": b"rows", "README.md": b""})
    (folder / "var").symlink_to(tmp_path / "disk")
    (folder / "README.md").symlink_to("../README.md")
    (folder / "gone").symlink_to("missing")
    os.mkfifo(folder / "pipe")
    (folder / "lost+found").mkdir(mode=0)
    (folder / "data" / "empty.py").mkdir(parents=True)
    assert read_code(folder).contents == PROJECT


def test_a_link_to_a_folder_of_code_is_refused(tmp_path: Path) -> None:
    """A run could not keep the code of the folder unchanged."""
    folder = write_files(tmp_path / "project", PROJECT)
    write_files(tmp_path, {"common/shared.py": b""})
    (folder / "common").symlink_to(tmp_path / "common")
    with pytest.raises(CodeUnusable, match=r"common' is a link to"):
        read_code(folder)


def test_a_folder_of_folders_with_code_is_code(tmp_path: Path) -> None:
    write_files(tmp_path, {**PROJECT, "common/parsing/json/b.py": b"", "deep/1/2/3/4/c.py": b""})
    assert set(read_code(tmp_path).contents) == {*PROJECT, "common/parsing/json/b.py"}


def test_excluded_folders_are_not_read(tmp_path: Path) -> None:
    write_files(tmp_path, {**PROJECT, "data/load.py": b"", "data/tables/rows.py": b""})
    (tmp_path / "by_link").symlink_to(tmp_path / "data" / "tables")
    assert set(read_code(tmp_path, (tmp_path / "by_link",)).contents) == {*PROJECT, "data/load.py"}


def test_a_link_to_a_file_of_the_project_is_copied_as_a_file(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "project", PROJECT)
    (folder / "assets" / "linked.py").symlink_to("orders.py")
    (tmp_path / "by_link").symlink_to(folder)
    assert read_code(tmp_path / "by_link").contents["assets/linked.py"] == PROJECT["assets/orders.py"]


def test_a_pipe_and_a_socket_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, PROJECT)
    os.mkfifo(tmp_path / "assets" / "pipe")
    with pytest.raises(CodeUnusable, match="pipe' is neither a file nor a folder"):
        read_code(tmp_path)
    (tmp_path / "assets" / "pipe").unlink()
    monkeypatch.chdir(tmp_path / "assets")  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(CodeUnusable, match="socket' is neither a file nor a folder"):
            read_code(tmp_path)


def test_a_folder_without_code_and_one_with_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CodeUnusable, match="has no Python files"):
        read_code(tmp_path)
    write_files(tmp_path, PROJECT)
    monkeypatch.setattr(files, "BYTES_MAX", sum(map(len, PROJECT.values())) - 1)
    with pytest.raises(CodeUnusable, match="has more than"):
        read_code(tmp_path)


def test_files_that_change_meanwhile_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files are edited together: a copy never has the earlier version of only one file."""
    write_files(tmp_path, PROJECT)
    edits = list(range(2))
    plain = list_code

    def edit_then_list(folder: Path, excluded: Collection[Path]) -> object:
        found = plain(folder, excluded)
        if edits:
            number = edits.pop()
            for name in ("assets/orders.py", "definitions.py"):
                (tmp_path / name).write_bytes(b"edit = %d\n" % number)
        return found

    monkeypatch.setattr(files, "list_code", edit_then_list)
    contents = read_code(tmp_path).contents
    assert contents["assets/orders.py"] == contents["definitions.py"] == b"edit = 0\n"


@pytest.mark.parametrize("is_removed", [False, True])
def test_files_that_change_all_the_time_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_removed: bool
) -> None:
    """An editor replaces the file after each listing; its name is missing for a moment, or its contents differ."""
    write_files(tmp_path, PROJECT)
    edited = tmp_path / "assets" / "orders.py"
    plain = list_code
    edits = count(1)

    def list_then_edit(folder: Path, excluded: Collection[Path]) -> object:
        edited.touch()
        found = plain(folder, excluded)
        if is_removed:
            edited.unlink()
        else:
            edited.write_bytes(b"#" * next(edits))
        return found

    monkeypatch.setattr(files, "list_code", list_then_edit)
    with pytest.raises(CodeUnusable, match="changes while it is read") as refused:
        read_code(tmp_path)
    assert Path(refused.value.path) == edited
