"""The boot of this machine."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str | None:
    """The kernel's id of this boot; None on systems without one."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None
