"""`lockstep-native`, the optional extension in Rust (`native/`): the same results for less CPU time.

Everything that it does is done without it too, by the module that calls it.

Why: docs/decisions/0048-an-optional-extension-in-rust.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from types import ModuleType

INTERFACE: Final = 6
"""What this version of lockstep calls; an extension with another interface is not used."""


def _import_extension() -> ModuleType | None:
    try:
        import lockstep_native
    except ImportError:
        return None
    return lockstep_native


_installed = _import_extension()
interface: Final[int | None] = None if _installed is None else _installed.INTERFACE
"""The interface of the installed extension; None without one."""
extension: Final = _installed if interface == INTERFACE else None
"""The extension; None if it is not installed, or belongs to another version of lockstep."""

WITHOUT: Final = "a ColumnFold takes 1.6 times the CPU time, a fold by hand up to 1.4 times"
"""The cost of a run without the extension; measured: docs/benchmarks.md."""
INSTALL: Final = 'make wheels, then pip install "CHECKOUT[native]" CHECKOUT/dist/lockstep_native-*_MACHINE.whl'
"""How to get it."""

KINDS: Final[dict[pa.DataType, str]] = {
    pa.string(): "str",
    pa.int64(): "int",
    pa.float64(): "float",
    pa.bool_(): "bool",
}
"""The types of columns that it makes."""


def describe_absence() -> str | None:
    """Why the extension is not used, and the cost; None if it is used."""
    if interface is None:
        return f"not installed: the same results, but {WITHOUT}"
    if extension is None:
        return f"has interface {interface}, and this lockstep calls {INTERFACE}: it is not used, and {WITHOUT}"
    return None


def make_array(
    kind: pa.DataType, size: int, buffers: Sequence[bytes], nulls: tuple[bytes | None, int] = (None, 0)
) -> pa.Array[Any]:
    """A column of the extension's buffers.

    Args:
        kind: Its type.
        size: Number of its values.
        buffers: Those of its values.
        nulls: A bit for each value that is there, and how many are not.
    """
    bits, null_count = nulls
    validity = None if bits is None else pa.py_buffer(bits)
    return pa.Array.from_buffers(kind, size, [validity, *map(pa.py_buffer, buffers)], null_count)
