"""Commands of children that the kernel kills when the process that started them ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Run by a bare interpreter in the child, before the command: PR_SET_PDEATHSIG is 1 and survives exec. The
# check of the parent closes the gap in which it died before the call to prctl. `preexec_fn` would do the
# same in a copy of the parent, where it can deadlock as soon as it has threads.
_TIE = """
import ctypes, os, signal, sys
owner = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != owner:
    sys.exit("the owner is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def make_tied_command(command: Sequence[str]) -> list[str]:
    """A command whose process ends with this process, also by a kill.

    Linux ties a child to the thread that starts it: start the command from a thread that lives as long.
    """
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]
