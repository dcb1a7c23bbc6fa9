"""Column types that Python's own types lack: the precision of a Decimal, the width of an int.

They are written as annotations, so that type checkers and decoders see the plain Python type:

    price: Annotated[Decimal, DecimalType(18, 8)]
    level: Int32 | None
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from lockstep.model.field_types import check_field_types

MAX_PRECISION: Final = 38
"""Digits of the widest decimal that Delta and Spark can hold."""


@dataclass(frozen=True, slots=True)
class DecimalType:
    """Marks a Decimal column as decimal(precision, scale); values that do not fit are refused, never rounded.

    Attributes:
        precision: Digits in all, 1 to 38.
        scale: Digits after the point, 0 to precision.
    """

    precision: int
    scale: int

    def __post_init__(self) -> None:
        """Refuse what is no number of digits."""
        check_field_types(self)


@dataclass(frozen=True, slots=True)
class IntegerType:
    """Marks an int column as 32 bits wide, not 64; values that do not fit are refused.

    Attributes:
        bits: 32 or 64.
    """

    bits: int

    def __post_init__(self) -> None:
        """Refuse what is no number of bits."""
        check_field_types(self)


Int32 = Annotated[int, IntegerType(32)]
