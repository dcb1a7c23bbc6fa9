"""JVM and Python use files of sockets only if no path of such files can be too long, under any master."""

from __future__ import annotations

import os
import socket
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lockstep.settings import SparkSettings
from lockstep.spark import session
from lockstep.spark.session import SOCKET_FILES, SOCKET_FOLDER, make_spark_properties

JAVA_OPTIONS = st.sampled_from(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"))
if TYPE_CHECKING:
    from collections.abc import Iterator

OF_SHORT_FOLDERS = st.sampled_from(
    ("local", "local[*]", "local[2,3]", "local-cluster[2,1,512]", "spark://master:7077", "spark://a:7077,b:7077")
)
OTHERS = st.one_of(
    st.sampled_from(("yarn", "k8s://https://kubernetes:6443", "k8s://http://127.0.0.1:8001")),
    st.text(min_size=1).filter(lambda master: not master.startswith(("local", "spark://"))),
)
FOLDERS = st.lists(st.text("aä.-_0 ", min_size=1, max_size=9).map(str.strip).filter(bool), min_size=1, max_size=12).map(
    lambda names: "/" + "/".join(names)
)


@pytest.fixture(autouse=True, scope="module")
def without_jars() -> Iterator[None]:
    """Leave out the jars and the archive of classes: they do not affect the choice, and each costs a hash."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "resolve_jars", lambda _group: ())
        patched.setattr(session, "_archive_options", lambda: ())
        yield


def choice(master: str, **options: str) -> str:
    return make_spark_properties(SparkSettings(master=master, options=options))[SOCKET_FILES]


def binds(folder: str) -> bool:
    """Return whether the kernel accepts the path of a socket in a folder of this length."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as listening:
        place = Path(short, "x" * (len(os.fsencode(folder)) - len(short) - 1))
        place.mkdir(exist_ok=True)
        try:
            listening.bind(f"{place}/.{uuid.uuid4()}.sock")
        except OSError as error:
            assert "too long" in str(error)  # noqa: PT017  # it is the second outcome
            return False
        return True


@given(master=OF_SHORT_FOLDERS)
def test_masters_that_leave_the_folder_for_temporary_files_alone_use_socket_files(master: str) -> None:
    assert choice(master) == "true"


@given(master=OTHERS, name=JAVA_OPTIONS, folder=FOLDERS)
def test_masters_that_may_move_that_folder_use_none(master: str, name: str, folder: str) -> None:
    assert choice(master) == "false"
    assert choice(master, **{name: f"-Djava.io.tmpdir={folder}"}) == "false"


@given(master=OF_SHORT_FOLDERS, name=JAVA_OPTIONS, folder=FOLDERS, quote=st.sampled_from(("", '"', "'")))
def test_a_folder_that_the_users_java_options_name_is_measured(master: str, name: str, folder: str, quote: str) -> None:
    folder = folder if quote else folder.replace(" ", "")
    assume(len(os.fsencode(folder)) > 20)  # long enough for the kernel to be asked at a place of that length
    given_options = f"-Xss1m {quote}-Djava.io.tmpdir={folder}{quote} -XX:+UseSerialGC"
    assert choice(master, **{name: given_options}) == str(binds(folder)).lower()


@given(master=OF_SHORT_FOLDERS, name=JAVA_OPTIONS, quote=st.sampled_from(('"', "'")))
def test_options_whose_quotes_have_no_end_are_left_to_spark(master: str, name: str, quote: str) -> None:
    assert choice(master, **{name: f"-Xss1m {quote}-Djava.io.tmpdir=/tmp"}) == "true"


@given(master=st.one_of(OF_SHORT_FOLDERS, OTHERS), folder=FOLDERS)
def test_a_folder_for_sockets_is_measured_for_each_master(master: str, folder: str) -> None:
    assume(len(os.fsencode(folder)) > 20)
    assert choice(master, **{SOCKET_FOLDER: folder}) == str(binds(folder)).lower()


@given(master=st.one_of(OF_SHORT_FOLDERS, OTHERS), folder=FOLDERS, wanted=st.sampled_from(("true", "false")))
def test_the_users_own_choice_goes_before(master: str, folder: str, wanted: str) -> None:
    assert choice(master, **{SOCKET_FILES: wanted, SOCKET_FOLDER: folder}) == wanted
