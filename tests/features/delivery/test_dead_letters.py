"""Undeliverable rows are left out if declared: the token counts them, and a file stores each row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.delivery import Delivery, KafkaTopic, RowSource, UndeliverableRows
from lockstep.errors import DeclarationError
from lockstep.features.delivery import claim
from lockstep.features.delivery.dead_letters import list_dead_letters
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.features.delivery.postgres_target import PostgresConnection
from lockstep.features.delivery.rebuild import prepare_rebuild
from lockstep.features.delivery.status import plan_delivery
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.settings import Settings
from lockstep.verify.report import InvariantStatus
from tests.features.delivery.postgres_rows import VARIABLE, declare, deliver, execute, prove, read_rows, to_nul
from tests.support.kept_stream import Row, keeping, script
from tests.support.offline_stream import Offline
from tests.support.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lockstep.features.delivery.targets import DeclaredDelivery


def is_readable(row: Row, origin: RowSource) -> bool:
    """Select all rows; raise ValueError at one name."""
    del origin
    if row.name == "z":
        raise ValueError("z")
    return True


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres.start() as server:
        yield server


@pytest.fixture
def url(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    made = postgres.make_database("dead")
    monkeypatch.setenv(VARIABLE, made)
    return made


@pytest.fixture
def offline(url: str, tmp_path: Path) -> Offline:
    """Tables of a stream with four batches and four rows."""
    del url
    made = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    made.run(*script())
    return made


def leave_out(offline: Offline, **options: Any) -> DeclaredDelivery:
    return declare(offline, undeliverable=UndeliverableRows.DEAD_LETTER, **options)


def read_letters(offline: Offline) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in list_dead_letters(offline.folders.root, "readings")]


def rebuild(offline: Offline, declared: DeclaredDelivery) -> int:
    settings = Settings(table_root=offline.folders.root)
    return prepare_rebuild(declared, settings, replaces=True).commit().rows


@pytest.mark.parametrize("options", [{"where": is_readable}, {"select": to_nul}], ids=["function", "target"])
def test_a_row_that_cannot_be_delivered_is_left_out_counted_and_delivered_by_a_rebuild(
    url: str, offline: Offline, options: dict[str, Any]
) -> None:
    declared = leave_out(offline, **options)
    assert deliver(offline, declared).rows == 3
    (letter,) = read_letters(offline)
    place = (letter["session"], letter["topic"], letter["batch"], letter["row"].rpartition("/")[0])
    assert place == ("a", "kept.one", letter["batch"], f"id-of-kept.one/0/{letter['offset']}")
    assert ("ValueError: z" if "where" in options else "Postgres refuses it") in letter["problem"]
    assert json.loads(letter["value"])["name"] in {"z", "a\0b"}
    plan = plan_delivery(declared, offline.folders.root)
    assert (plan.dead_letters, "1 rows are dead letters" in plan.problem) == (1, True)
    proof = prove(offline, declared)
    assert (proof.status, proof.reason) == (InvariantStatus.NOT_PROVEN, "1 rows are dead letters")
    assert deliver(offline, declared).rows == 0
    assert len(read_letters(offline)) == 1
    corrected = leave_out(offline)
    assert rebuild(offline, corrected) == 4
    assert (len(read_rows(url)), read_letters(offline)) == (4, [])
    assert prove(offline, corrected).status is InvariantStatus.PROVEN


def test_a_write_that_does_not_end_leaves_the_rows_and_dead_letters_of_the_token(
    url: str, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function is corrected between the two runs: the file without a token is deleted."""

    def die(_: object, rows: Sequence[object], after: int) -> None:
        del after
        if rows:
            raise OSError("died")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "_write_rows", die)
        with pytest.raises(OSError, match="died"):
            deliver(offline, leave_out(offline, where=is_readable))
    assert len(read_letters(offline)) == 1
    assert deliver(offline, leave_out(offline)).rows == 4
    assert (len(read_rows(url)), read_letters(offline)) == (4, [])


def test_more_dead_letters_than_the_token_takes_halt_the_delivery(
    offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "DEAD_MAX", 0)
    with pytest.raises(DeliveryHalted, match="ValueError: z; there are 0 dead letters") as halted:
        deliver(offline, leave_out(offline, where=is_readable))
    assert "delivery rebuild readings --replace" in halted.value.next_step


def test_an_erasure_deletes_the_dead_letters_of_its_session(url: str, offline: Offline) -> None:
    del url
    declared = leave_out(offline, where=is_readable)
    deliver(offline, declared)
    request = EraseRequest(session="a", drop_state=True)
    erase_session(offline.folders, request, EraseContext(), who="a test", why="a request")
    deliver(offline, declared)
    assert read_letters(offline) == []
    proof = prove(offline, declared)
    assert (proof.status, proof.reason) == (InvariantStatus.PROVEN, "")


def test_a_constraint_of_the_database_makes_a_dead_letter(url: str, offline: Offline) -> None:
    empty = declare(offline, where=is_nothing)
    deliver(offline, empty)
    execute(url, "ALTER TABLE readings ADD CHECK (name <> 'z')", "TRUNCATE lockstep_deliveries")
    assert deliver(offline, leave_out(offline)).rows == 3
    assert "violates check constraint" in read_letters(offline)[0]["problem"]


def is_nothing(row: Row, origin: RowSource) -> bool:
    """Select no row."""
    del row, origin
    return False


def test_the_effect_is_declared_by_its_name() -> None:
    with pytest.raises(DeclarationError, match=r"Delivery\.undeliverable"):
        Delivery(name="moves", target=KafkaTopic(topic="moves"), undeliverable="dead letter")  # type: ignore[arg-type]  # a text
