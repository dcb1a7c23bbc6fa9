"""Jars are from a mirror or the cache, and only with the hash that the lock demands."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import EnvironmentProblem
from lockstep.spark.jars import LOCK, find_cache_folder, parse_lock, read_lock, renew_lock, resolve_jars

if TYPE_CHECKING:
    from pathlib import Path

CONTENTS = b"not a real jar, but a real file"
SHA256 = hashlib.sha256(CONTENTS).hexdigest()


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a Maven repository in a folder, with one jar in it; the cache is empty."""
    monkeypatch.setenv("LOCKSTEP_MAVEN_REPOSITORY", (tmp_path / "mirror").as_uri() + "/")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    published = tmp_path / "mirror" / "org" / "example" / "tool" / "1.0"
    published.mkdir(parents=True)
    (published / "tool-1.0.jar").write_bytes(CONTENTS)
    return tmp_path / "mirror"


def a_lock(folder: Path, sha256: str, artifact: str = "tool") -> Path:
    lock = folder / "jars.lock"
    lock.write_text(f"# a comment\ntools org.example:{artifact}:1.0 {sha256}\n")
    return lock


def folders_left(lock: Path) -> list[str]:
    parent = find_cache_folder(read_lock(lock, "tools")).parent
    return sorted(found.name for found in parent.iterdir()) if parent.exists() else []


@pytest.mark.usefixtures("mirror")
def test_a_jar_is_fetched_once_and_then_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = a_lock(tmp_path, SHA256)
    (fetched,) = resolve_jars("tools", lock=lock)
    monkeypatch.setenv("LOCKSTEP_MAVEN_REPOSITORY", "http://127.0.0.1:9/")
    assert resolve_jars("tools", lock=lock) == (fetched,)
    assert fetched.read_bytes() == CONTENTS


@pytest.mark.usefixtures("mirror")
def test_a_jar_with_another_hash_is_refused_by_name_and_not_kept(tmp_path: Path) -> None:
    lock = a_lock(tmp_path, "0" * 64)
    with pytest.raises(EnvironmentProblem) as raised:
        resolve_jars("tools", lock=lock)
    expected = f"jar org.example:tool:1.0 is not the locked one: expected SHA-256 {'0' * 64}, found {SHA256}"
    assert raised.value.problem == expected
    assert folders_left(lock) == []


@pytest.mark.usefixtures("mirror")
def test_a_jar_that_is_swapped_in_the_cache_is_refused(tmp_path: Path) -> None:
    lock = a_lock(tmp_path, SHA256)
    (fetched,) = resolve_jars("tools", lock=lock)
    fetched.write_bytes(CONTENTS + b" and more")
    with pytest.raises(EnvironmentProblem, match=r"org\.example:tool:1\.0 is not the locked one"):
        resolve_jars("tools", lock=lock)


@pytest.mark.usefixtures("mirror")
def test_a_jar_that_is_missing_from_the_cache_is_named(tmp_path: Path) -> None:
    lock = a_lock(tmp_path, SHA256)
    (fetched,) = resolve_jars("tools", lock=lock)
    fetched.unlink()
    with pytest.raises(EnvironmentProblem, match=r"tool:1\.0 .* found no file"):
        resolve_jars("tools", lock=lock)


@pytest.mark.usefixtures("mirror")
def test_a_jar_that_no_mirror_has_is_named_with_the_remedy(tmp_path: Path) -> None:
    lock = a_lock(tmp_path, SHA256, artifact="unknown")
    with pytest.raises(EnvironmentProblem, match=r"org\.example#unknown;1\.0") as raised:
        resolve_jars("tools", lock=lock)
    assert "check the network" in raised.value.next_step
    assert folders_left(lock) == []


@pytest.mark.usefixtures("mirror")
def test_processes_that_fetch_at_once_end_with_one_folder(tmp_path: Path) -> None:
    lock = a_lock(tmp_path, SHA256)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: resolve_jars("tools", lock=lock), range(2))
    assert first == second
    assert folders_left(lock) == [first[0].parent.name]


def test_an_archive_with_a_classifier_is_fetched_as_a_jar_is(mirror: Path, tmp_path: Path) -> None:
    published = mirror / "org" / "example" / "kit" / "1.0"
    published.mkdir(parents=True)
    (published / "kit-1.0-all.tar.gz").write_bytes(CONTENTS)
    lock = a_lock(tmp_path, SHA256)
    lock.write_text(f"{lock.read_text()}tools org.example:kit:1.0:all@tar.gz {'0' * 64}\n")
    renew_lock(lock)
    assert lock.read_text().splitlines()[2] == f"tools org.example:kit:1.0:all@tar.gz {SHA256}"
    assert [path.name for path in resolve_jars("tools", lock=lock)] == ["tool-1.0.jar", "kit-1.0-all.tar.gz"]


@pytest.mark.usefixtures("mirror")
def test_the_lock_is_written_anew_with_the_hashes_found(tmp_path: Path) -> None:
    lock = a_lock(tmp_path, "0" * 64)
    renew_lock(lock)
    assert lock.read_text() == f"# a comment\ntools org.example:tool:1.0 {SHA256}\n"


def test_a_group_that_the_lock_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="lists no jars of group 'delta'"):
        resolve_jars("delta", lock=a_lock(tmp_path, SHA256))


def test_the_committed_lock_names_each_jar_once_with_a_whole_hash() -> None:
    jars = parse_lock(LOCK.read_text())
    assert {len(jar.sha256) for jar in jars} == {64}
    assert len({(jar.group, jar.file_name) for jar in jars}) == len(jars)
    assert {jar.group for jar in jars} == {"delta", "s3", "kafka", "s3proxy"}
