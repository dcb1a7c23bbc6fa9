"""The position of a delivery whose target cannot keep it: files in the table root, one for each claim.

    <table root>/_deliveries/<name>.claims/<number>.json

A claim creates the file with the next number, exclusively, and then reads the token of the claim before. It writes its
token to its file only, so an earlier run that is still alive never moves the position back.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from lockstep.declare.delivery_target import DeliveryFenced, DeliveryToken, TargetRefused
from lockstep.features.delivery.events import FOLDER
from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage


class ClaimFiles:
    """A claim, and the token of the newest one.

    Attributes:
        number: Its number.
        token: The newest token; None before the first write.
    """

    def __init__(self, root: Path, delivery: str) -> None:
        """Claim the position.

        Args:
            root: The table root.
            delivery: Name of the delivery.

        Raises:
            DeliveryFenced: Another run claims it at the same moment.
            TargetRefused: The token cannot be decoded.
        """
        self._delivery = delivery
        self._folder = root / FOLDER / f"{delivery}.claims"
        self._storage = find_storage(self._folder)
        self._storage.make_folder(self._folder)
        earlier = self._list_numbers()
        self.number = max(earlier, default=0) + 1
        try:
            self._storage.create(self._make_path(self.number))
        except FileExistsError as error:
            raise DeliveryFenced(delivery) from error
        self.token = self._read_newest(earlier)

    def require_newest(self) -> None:
        """Refuse to continue after a newer claim. Raises DeliveryFenced."""
        if max(self._list_numbers(), default=0) > self.number:
            raise DeliveryFenced(self._delivery)

    def write(self, token: DeliveryToken) -> None:
        """Write the token, and delete the files of earlier claims.

        Raises:
            DeliveryFenced: There is a newer claim.
        """
        self.require_newest()
        self._storage.replace(self._make_path(self.number), msgspec.json.encode(token))
        self.token = token
        for each in self._list_numbers():
            if each < self.number:
                self._storage.delete(self._make_path(each))

    def _list_numbers(self) -> list[int]:
        numbers = list[int]()
        for name in self._storage.list_names(self._folder):
            with suppress(ValueError):  # a file that is being written
                numbers.append(int(name.removesuffix(".json")))
        return numbers

    def _read_newest(self, numbers: list[int]) -> DeliveryToken | None:
        """The newest token of some claims: a claim that was killed has none."""
        for each in sorted(numbers, reverse=True):
            path = self._make_path(each)
            try:
                content = self._storage.read(path)
                if content:
                    return decode_json(content, DeliveryToken)
            except FileNotFoundError as error:  # deleted by a claim that wrote its token meanwhile
                raise DeliveryFenced(self._delivery) from error
            except msgspec.DecodeError as error:
                problem = f"its position {path} cannot be decoded: {error}"
                step = (
                    "deliver with the release that wrote it; or delete the file: all rows are sent again, by their ids"
                )
                raise TargetRefused(self._delivery, problem, next_step=step) from error
        return None

    def _make_path(self, number: int) -> Path:
        return self._folder / f"{number:010d}.json"
