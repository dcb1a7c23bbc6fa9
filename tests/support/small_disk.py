"""Disks of a few megabytes, which can be filled and emptied without harm to others."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from lockstep.features.localdev.processes import start_child
from tests.support.installation import wait_until

if TYPE_CHECKING:
    from types import TracebackType

FILL_BYTES = 4096
MOUNT = 'mount -t tmpfs -o "size=$0m" tmpfs "$1" && echo mounted'


class SmallDisk:
    """A tmpfs over a folder. Only processes in its namespace see it; this process reads it through /proc.

    Attributes:
        seen: The folder as this process sees it.
    """

    def __init__(self, folder: Path, log: Path, megabytes: int) -> None:
        """Mount nothing before the block starts."""
        self._folder = folder
        self._log = log
        self._megabytes = megabytes
        self.seen = folder

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._holder = self._start(str(self._megabytes), str(self._folder))
        wait_until(lambda: "mounted" in self._log.read_text() or self._holder.poll() is not None, "the mount")
        if self._holder.poll() is not None:
            pytest.skip(f"not run: nothing can be mounted here: {self._log.read_text().strip()}")
        self.seen = self._find_seen()
        return self

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        mount = f"{MOUNT} && exec sleep infinity"
        return start_child(["unshare", "--mount", "sh", "-c", mount, *arguments], folder=Path("/"), log=self._log)

    def _find_seen(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/root") / self._folder.relative_to("/")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.kill()
        self._holder.wait()

    @property
    def entered(self) -> tuple[str, ...]:
        """The prefix of a command that uses the disk."""
        return ("nsenter", "--target", str(self._holder.pid), "--mount", "--")

    def fill(self) -> None:
        """Fill the disk."""
        with (self.seen / "filler").open("ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(FILL_BYTES))
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017  # the expected end

    def empty(self) -> None:
        """Free the space."""
        (self.seen / "filler").unlink()

    @property
    def is_full(self) -> bool:
        """Whether the file system reports no free space."""
        return os.statvfs(self.seen).f_bavail == 0


class MountedDisk(SmallDisk):
    """A disk for all processes: SQLite cannot open a file by a link to another namespace.

    It is unmounted even if this process is killed.
    """

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """The mount ends with its standard input, which ends with this process."""
        command = ["setsid", "sh", "-c", f'{MOUNT} && {{ cat; umount --lazy "$1"; }}', *arguments]
        with self._log.open("wb") as log:
            return subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=log, stderr=log)

    def _find_seen(self) -> Path:
        return self._folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.communicate()
        assert not self._folder.is_mount(), self._log.read_text()
