"""Starts processes that cannot outlive the one that started them, not even its kill -9."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Run by a bare interpreter in the child, before the command: PR_SET_PDEATHSIG is 1 and survives exec. The
# look at the parent closes the gap in which it died before the wish was registered. `preexec_fn` would do the
# same in a copy of the parent, where it can deadlock as soon as there are threads.
_TIE = """
import ctypes, os, signal, sys
owner = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != owner:
    sys.exit("the owner is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""

# Below the range from which Linux takes the near end of outgoing connections, so that a port stays free while
# its server is being restarted.
PORTS = range(20_000, 32_000)


def start_tied(command: Sequence[str], *, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that the kernel kills when this thread's process ends.

    Call it from a thread that lives as long as the process is needed: Linux ties a child to the thread
    that started it.

    Args:
        command: The command and its arguments.
        folder: Its working folder.
        log: Where its output and errors go, appended.
    """
    tied = [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]
    with log.open("ab") as output:
        return subprocess.Popen(
            tied, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def free_ports(count: int) -> tuple[int, ...]:
    """Different loopback TCP ports that nobody listens on now; another process may still take one first."""
    shuffled = random.sample(PORTS, len(PORTS))
    return tuple(islice(filter(is_free, shuffled), count))


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
