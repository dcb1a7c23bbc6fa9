"""Errors of the machine and of libraries have a problem and a next step; defects stay unchanged."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import EnvironmentProblem, LockstepError, StoreFailed, TableError
from lockstep.foreign_errors import explain_error, explain_errors

if TYPE_CHECKING:
    from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
OF_PATHS = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)
UNKNOWN = sorted(errno.errorcode.keys() - {*FULL, *OF_PATHS})


def test_a_full_disk_is_named_or_how_to_find_it(tmp_path: Path) -> None:
    named = explain_error(OSError(errno.ENOSPC, "No space left on device", str(tmp_path)))
    nameless = explain_error(OSError(errno.ENOSPC, "No space left on device"))
    assert named is not None
    assert nameless is not None
    assert (named.problem, "free space there" in named.next_step) == (f"No space left on device: {tmp_path}", True)
    assert nameless.next_step.startswith("free space in table_root, local_root or TMPDIR (lockstep doctor names")


@given(number=st.sampled_from((*FULL, *OF_PATHS)), path=st.text(min_size=1, max_size=20))
def test_an_error_of_a_file_names_the_file_and_a_next_step(number: int, path: str) -> None:
    explained = explain_error(OSError(number, os.strerror(number), path))
    assert isinstance(explained, EnvironmentProblem)
    assert explained.problem == f"{os.strerror(number)}: {path}"
    assert "then try again" in explained.next_step


@given(number=st.sampled_from(UNKNOWN))
def test_another_error_of_the_system_is_a_defect(number: int) -> None:
    assert explain_error(OSError(number, os.strerror(number), "a-file")) is None


@pytest.mark.parametrize("error", [ValueError("no"), ConnectionResetError("not of py4j"), EOFError(), OSError("bare")])
def test_a_defect_stays_unchanged(error: Exception) -> None:
    assert explain_error(error) is None
    with pytest.raises(type(error)) as raised, explain_errors("adding"):
        raise error
    assert raised.value is error


def test_an_error_of_an_object_store_keeps_its_next_step() -> None:
    explained = explain_error(StoreFailed(errno.EIO, "slow down", "s3://bucket/key", "wait"))
    assert explained is not None
    assert (explained.problem, explained.next_step) == ("s3://bucket/key: slow down", "wait")


def test_a_log_with_a_gap_names_the_stream_to_repair(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(TableError, match="a table cannot be read: ") as raised, explain_errors("adding"):
        DeltaTable(tmp_path)
    assert raised.value.next_step == "lockstep repair adding checks the table"
    assert isinstance(raised.value.__cause__, TableNotFoundError)


@pytest.mark.parametrize("stream", ["adding", ""])
def test_the_stream_is_named_if_it_is_known(stream: str) -> None:
    with pytest.raises(LockstepError) as raised, explain_errors(stream):
        raise LockstepError("torn", next_step="lockstep repair STREAM")
    assert raised.value.next_step == f"lockstep repair {stream or 'STREAM'}"
    with pytest.raises(TableError) as torn, explain_errors(stream):
        raise DeltaError("found gap")
    assert torn.value.next_step == f"lockstep repair {stream or 'STREAM'} checks the table"
