"""A receiver of HTTP requests as the target of a delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lockstep.declare.secret_location import require_location
from lockstep.errors import DeclarationError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_field_types

_LIMITS: Final = {
    "request_rows": (1_000, "100"),
    "request_seconds": (20.0, "1.0"),
    "request_bytes": (16_000_000, "1_000_000"),
    "timeout_seconds": (60.0, "10.0"),
}


@dataclass(frozen=True, kw_only=True)
class Webhook(Declaration):
    """A receiver of HTTP requests: at least once, with an id of each row by which the receiver ignores repetitions.

    An answer of 2xx accepts a request (docs/deliver.md).

    Example: `Webhook(url="env:ALERTS_URL", authorization="env:ALERTS_AUTHORIZATION")`

    Attributes:
        url: Location of the receiver's address, a secret: `file:` and an absolute path, or `env:` and a variable.
        authorization: Location of the value of the header Authorization, such as "Bearer ..."; empty without one.
        request_rows: Rows of a request, at most.
        request_seconds: Time for which a request collects rows, at most.
        request_bytes: Bytes of the rows of a request, at most; a larger row cannot be delivered.
        timeout_seconds: Time for a request and its answer, at most.
    """

    url: str
    authorization: str = ""
    request_rows: int = 100
    request_seconds: float = 1.0
    request_bytes: int = 1_000_000
    timeout_seconds: float = 10.0

    joins_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse values that no receiver or request can have."""
        check_field_types(self)
        right = "'env:ALERTS_URL' or 'file:/run/secrets/alerts_url'"
        require_location("Webhook.url", self.url, "does not name the location of an address", right)
        if self.authorization:
            right = "'env:ALERTS_AUTHORIZATION' or 'file:/run/secrets/alerts_authorization'"
            problem = "does not name the location of a value of the header Authorization"
            require_location("Webhook.authorization", self.authorization, problem, right)
        for name, (most, usual) in _LIMITS.items():
            value = getattr(self, name)
            if not 0 < value <= most:
                problem = f"is not more than 0 and at most {most:g}"
                raise DeclarationError(f"Webhook.{name}", value, problem, usual)

    @property
    def address(self) -> str:
        """The location of the address, as two deliveries to one place are refused by it."""
        return f"webhook of {self.url}"

    @property
    def transaction_rows(self) -> int:
        """Rows that are sent before the position moves."""
        return self.request_rows

    @property
    def transaction_seconds(self) -> float:
        """Time for which they are collected."""
        return self.request_seconds
