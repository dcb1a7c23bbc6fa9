"""A foreign folder is refused before the first write, with any names in its manifest; foreign files stay."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.features.copies.backup import FILES, BackupManifest, make_backup, prepare_restore, restore_backup
from lockstep.features.copies.copied_files import (
    BEGUN,
    MANIFEST,
    BegunCopy,
    CopiedFile,
    CopyDamaged,
    hash_file,
    read_manifest,
    write_manifest,
)
from lockstep.features.copies.relocate import POSITIONS, ExportedPositions, SavepointManifest, read_export
from lockstep.storage import PathRefused, find_fault, find_named_files
from tests.support.examples import scale_examples
from tests.support.protocol_run import ProtocolRun, folders_in, stored_offsets
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from pathlib import Path

VICTIM = b"not of this folder"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    made = ProtocolRun(folders_in(tmp_path_factory.mktemp("run")))
    made.claim()
    for _ in range(3):
        made.batch(full=True)
    return made


@pytest.fixture(scope="module")
def copied(run: ProtocolRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("copied") / "copy"
    make_backup(run.folders, target)
    return target


def look(place: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Return mode, time and content of all entries below a folder."""
    found = dict[str, tuple[int, int, bytes | None]]()
    for each in sorted(place.rglob("*")):
        status = each.lstat()
        is_file = each.is_file() and not each.is_symlink()
        found[str(each.relative_to(place))] = (
            status.st_mode,
            0 if each.is_dir() and not each.is_symlink() else status.st_mtime_ns,
            each.read_bytes() if is_file else None,
        )
    return found


PLAIN = st.text("ab.é/\\:* ~%", min_size=1, max_size=6)
PARTS = st.sampled_from(
    ["", ".", "..", "a", "A", "table", "state", "link", "loop", "device", "victim", "keys", "n" * 256]
)
HOSTILE = st.one_of(
    st.lists(PARTS, min_size=1, max_size=8).map("/".join),
    st.builds("{}/victim/keys".format, st.integers(1, 6).map(lambda up: "/".join(["link", *[".."] * up]))),
    st.just("{place}/victim/keys"),
    st.just("//{place}/victim/keys"),
    st.just("link/keys"),
    st.just("leaf"),
    st.just("device"),
    st.just("pipe"),
    st.just("/dev/zero"),
    st.just("file:///etc/passwd"),
    st.just("a\0b"),
    st.just("table/" * 400 + "x"),
    st.text(st.characters(), max_size=12),
    PLAIN,
)
SMALL = settings(
    max_examples=scale_examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def set_trap(place: Path, copied: Path) -> Path:
    """Make a copy with links, a device and a pipe among its files, next to a victim file."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "victim").mkdir(parents=True)
    (place / "victim" / "keys").write_bytes(VICTIM)
    shutil.copytree(copied, place / "copy", copy_function=os.link)
    files = place / "copy" / FILES
    (files / "deep" / "d1" / "d2" / "d3").mkdir(parents=True)
    (files / "link").symlink_to(files / "deep" / "d1" / "d2" / "d3")
    (files / "loop").symlink_to("loop")
    (files / "leaf").symlink_to(place / "victim" / "keys")
    (files / "device").symlink_to("/dev/zero")
    os.mkfifo(files / "pipe")
    (place / "tables").mkdir()
    return place / "copy"


def add_names(copy: Path, names: list[str]) -> None:
    document = read_manifest(copy, BackupManifest)
    fakes = tuple(CopiedFile(name.replace("{place}", str(copy.parent)), len(VICTIM), "") for name in names)
    (copy / MANIFEST).unlink()
    write_manifest(copy, msgspec.structs.replace(document, files=(*fakes, *document.files)))


@SMALL
@given(names=st.lists(HOSTILE, min_size=1, max_size=3))
def test_a_restore_refuses_foreign_names_before_its_first_write(copied: Path, tmp_path: Path, names: list[str]) -> None:
    copy = set_trap(tmp_path / "place", copied)
    try:
        add_names(copy, names)
    except UnicodeEncodeError:  # a manifest cannot name it
        return
    before = look(copy.parent)
    for restore in (prepare_restore, restore_backup):
        with pytest.raises((PathRefused, CopyDamaged)):
            restore(folders_in(copy.parent / "tables"), copy)
        assert look(copy.parent) == before


@SMALL
@given(names=st.lists(HOSTILE, min_size=1, max_size=3), name=st.sampled_from([MANIFEST, BEGUN]))
def test_a_backup_deletes_and_replaces_only_what_is_its_own(
    run: ProtocolRun, copied: Path, tmp_path: Path, names: list[str], name: str
) -> None:
    copy = set_trap(tmp_path / "place", copied)
    stray = copy / FILES / "table" / "of-somebody.parquet"
    stray.write_bytes(VICTIM)
    try:
        if name == MANIFEST:
            add_names(copy, names)
        else:
            real = tuple(each.replace("{place}", str(copy.parent)) for each in names)
            write_manifest(copy, BegunCopy("readings", real), BEGUN)
    except UnicodeEncodeError:
        return
    before = look(copy.parent)
    try:
        planned = make_backup(run.folders, copy, plan_only=True).deleted
    except PathRefused:
        with pytest.raises(PathRefused):
            make_backup(run.folders, copy)
        assert look(copy.parent) == before
        return
    assert look(copy.parent) == before
    assert make_backup(run.folders, copy).deleted == planned
    after = look(copy.parent)
    gone = before.keys() - after.keys() - {f"copy/{BEGUN}"}
    assert gone == {f"copy/{FILES}/{each}" for each in planned} <= {f"copy/{FILES}/{each}" for each in names}
    assert stray.read_bytes() == VICTIM == (copy.parent / "victim" / "keys").read_bytes()


@SMALL
@given(names=st.lists(HOSTILE, min_size=1, max_size=3), evidence=HOSTILE)
def test_an_import_reads_nothing_that_is_not_in_its_folder(
    copied: Path, tmp_path: Path, names: list[str], evidence: str
) -> None:
    copy = set_trap(tmp_path / "place", copied)
    document = read_manifest(copy, BackupManifest)
    (copy / MANIFEST).unlink()
    hostile = SavepointManifest(
        stream="readings", savepoint="s", cluster_id="c", table_id="t", batch=1, version=1,
        exported_at=document.taken_at, accepts_burst=False, digest="", evidence=evidence,
        files=tuple(CopiedFile(name, len(VICTIM), "") for name in names),
    )  # fmt: skip
    try:
        write_manifest(copy, hostile)
    except UnicodeEncodeError:
        return
    before = look(copy.parent)
    with pytest.raises((PathRefused, CopyDamaged)):
        read_export(copy, "readings")
    assert look(copy.parent) == before


@given(name=HOSTILE)
def test_a_plain_name_is_the_path_that_it_says(name: str) -> None:
    """Checked against an oracle: a valid name, joined and normalized, is unchanged and below its folder."""
    if not find_fault(name):
        assert os.path.normpath(os.path.join("/top", name)) == f"/top/{name}"  # noqa: PTH118  # the oracle
        assert os.fsencode(name) == name.encode()


def test_the_example_writes_nothing(copied: Path, tmp_path: Path) -> None:
    """`a/b` is a link five folders deep, and `a/b/../../../../../victim/keys` leads out of the root."""
    copy = set_trap(tmp_path / "place", copied)
    files = copy / FILES
    (files / "d1" / "d2" / "d3" / "d4" / "d5").mkdir(parents=True)
    (files / "a").mkdir()
    (files / "a" / "b").symlink_to(files / "d1" / "d2" / "d3" / "d4" / "d5")
    for name in ("a/b/../../../../../victim/keys", str(tmp_path / "place" / "victim" / "keys"), "link/keys"):
        add_names(copy, [name])
        before = look(copy.parent)
        with pytest.raises(PathRefused, match="nothing was written") as refused:
            restore_backup(folders_in(copy.parent / "tables"), copy)
        assert name == refused.value.name
        assert look(copy.parent) == before
        shutil.rmtree(copy)
        copy = set_trap(tmp_path / "place", copied)


@pytest.mark.parametrize("name", ["files", "files/table", "lock", MANIFEST, BEGUN])
@pytest.mark.parametrize("target", ["outside", "/dev/zero", "missing"])
def test_a_backup_does_not_follow_links_in_its_folder(
    run: ProtocolRun, copied: Path, tmp_path: Path, name: str, target: str
) -> None:
    copy = set_trap(tmp_path / "place", copied)
    outside = copy.parent / "outside"
    (outside / "table").mkdir(parents=True)
    (outside / "table" / "keys.parquet").write_bytes(VICTIM)
    link = copy / name
    if link.is_dir():
        shutil.rmtree(link)
    else:
        link.unlink(missing_ok=True)
    link.symlink_to(target if target.startswith("/") else copy.parent / target)
    before = look(copy.parent)
    run.batch(full=True)
    with pytest.raises((PathRefused, CopyDamaged)):
        make_backup(run.folders, copy)
    assert look(copy.parent) == before


def test_a_folder_in_use_is_refused_and_what_a_killed_backup_began_is_not(run: ProtocolRun, tmp_path: Path) -> None:
    target = tmp_path / "in-use"
    (target / "photos").mkdir(parents=True)
    before = look(tmp_path)
    for plan_only in (True, False):
        with pytest.raises(CopyDamaged, match=r"has no manifest\.json, and 1 other files or folders: photos"):
            make_backup(run.folders, target, plan_only=plan_only)
    assert look(tmp_path) == before
    begun = tmp_path / "begun"
    (begun / FILES / "table").mkdir(parents=True)
    draft = begun / FILES / "table" / f"part.parquet.{'0' * 32}.partial"
    other = begun / FILES / "table" / "other.partial"
    for each in (draft, other, begun / FILES / "table" / "part.parquet"):
        each.write_bytes(b"half")
    write_manifest(begun, BegunCopy("readings", ("table/part.parquet",)), BEGUN)
    assert make_backup(run.folders, begun).deleted == ("table/part.parquet", f"table/{draft.name}")
    assert other.exists()
    assert not draft.exists()
    assert not (begun / BEGUN).exists()
    restore_backup(folders_in(tmp_path / "restored"), begun)
    assert stored_offsets(folders_in(tmp_path / "restored")) == stored_offsets(run.folders)


def test_a_manifest_that_is_too_large_is_not_read(copied: Path, tmp_path: Path) -> None:
    copy = set_trap(tmp_path / "place", copied)
    (copy / MANIFEST).unlink()
    with (copy / MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PathRefused, match="at most 256000000 are expected"):
        restore_backup(folders_in(copy.parent / "tables"), copy)


@pytest.mark.parametrize("table", ["table", "ledger"])
@pytest.mark.parametrize("action", ["add", "remove"])
@pytest.mark.parametrize("name", first_usual(1, ["../../victim/x.parquet", "/etc/passwd", "a%2F..%2F..%2Fvictim"]))
@pytest.mark.parametrize("place", [0, -1])
def test_a_log_that_names_files_elsewhere_in_any_version_is_not_restored(
    run: ProtocolRun, tmp_path: Path, table: str, action: str, name: str, place: int
) -> None:
    """The manifest is valid, but a table log names files outside the stream for its reader or for the clean-up."""
    copy = tmp_path / "copy"
    make_backup(run.folders, copy)
    entry = sorted((copy / FILES / table / "_delta_log").glob("*.json"))[place]
    line = {"path": name, "size": 1, "modificationTime": 0, "dataChange": True, "partitionValues": {}}
    entry.write_bytes(entry.read_bytes().rstrip() + b"\n" + msgspec.json.encode({action: line}) + b"\n")
    name_again(copy, entry)
    restored = folders_in(tmp_path / "restored")
    with pytest.raises(CopyDamaged, match="its log names 1 files that are not its own"):
        restore_backup(restored, copy)
    assert not restored.table.parent.exists()


def test_a_checkpoint_that_names_files_elsewhere_is_not_restored(run: ProtocolRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    make_backup(run.folders, copy)
    log = copy / FILES / "table" / "_delta_log"
    hostile = log / "00000000000000000001.checkpoint.parquet"
    pq.write_table(pa.table({"remove": [{"path": "../../victim/x.parquet"}]}), hostile)
    name_again(copy, hostile)
    with pytest.raises(CopyDamaged, match=r"its log names 1 files .*victim/x\.parquet"):
        restore_backup(folders_in(tmp_path / "restored"), copy)


def test_a_log_with_actions_that_are_not_whole_is_not_restored(run: ProtocolRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    make_backup(run.folders, copy)
    entry = max((copy / FILES / "table" / "_delta_log").glob("*.json"))
    line = {"path": "x.parquet", "size": 1, "modificationTime": 0, "dataChange": True, "partitionValues": {}}
    entry.write_bytes(entry.read_bytes().rstrip() + b"\n" + msgspec.json.encode({"add": line}) + b"\n")
    name_again(copy, entry)
    with pytest.raises(CopyDamaged, match="its log cannot be read: "):
        restore_backup(folders_in(tmp_path / "restored"), copy)


def name_again(copy: Path, changed: Path) -> None:
    """Record a changed or new file in the manifest."""
    document = read_manifest(copy, BackupManifest)
    name = str(changed.relative_to(copy / FILES))
    mine = CopiedFile(name, changed.stat().st_size, hash_file(changed))
    files = (*(file for file in document.files if file.path != name), mine)
    write_manifest(copy, msgspec.structs.replace(document, files=files))


@pytest.mark.parametrize("size", [0, 1, 1 << 40])
def test_positions_are_read_only_as_a_file_of_the_export(copied: Path, tmp_path: Path, size: int) -> None:
    """A positions file that is missing, a link, not JSON or too large is a named error and is never loaded."""
    copy = set_trap(tmp_path / "place", copied)
    positions = copy / FILES / POSITIONS
    if size:
        with positions.open("wb") as file:
            file.truncate(size)
    else:
        positions.symlink_to(copy.parent / "victim" / "keys")
    with pytest.raises((PathRefused, CopyDamaged)):
        read_manifest(copy / FILES, ExportedPositions, POSITIONS)


def test_names_are_looked_up_without_following_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"x")
    (tmp_path / "root").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "leaf").symlink_to("file")
    found = find_named_files(tmp_path / "root", ["file", "leaf", "gone"])
    assert [each and each.size for each in found.values()] == [1, None, None]
    with pytest.raises(PathRefused, match="named twice"):
        find_named_files(tmp_path, ["a", "a"])
