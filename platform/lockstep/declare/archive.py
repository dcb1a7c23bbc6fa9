"""Archive: the messages of a stream are kept next to its table for longer than Kafka keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_field_types


@dataclass(frozen=True, kw_only=True)
class Archive(Declaration):
    """Each message that the stream reads is kept as Kafka had it, in `<table_root>/<stream>/archive`.

    Example: `Archive(keep=timedelta(days=90))`

    Attributes:
        keep: How long messages stay, in whole hours counted from the newest batch; None keeps all.
    """

    keep: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse values of other types."""
        check_field_types(self)
