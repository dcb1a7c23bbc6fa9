"""Errors carry their parts, say the next step, and survive the way from a worker to the driver."""

from __future__ import annotations

import pickle

import pytest

from lockstep import errors
from lockstep.errors import LockstepError
from lockstep.integrity.finding import Finding

FINDING = Finding(
    cause="gap",
    topic="books.eth",
    topic_id="id",
    partition=0,
    offset=120,
    until=121,
    session="eth",
    expected="7",
    found="9, missing 7 to 8",
)

EVERY: tuple[LockstepError, ...] = (
    errors.DeclarationError("Every.seconds", 0.0, "is wrong", "Every(seconds=5)"),
    errors.NotYet("Stream.rules", ("x",), "leave it out"),
    errors.SettingsError("settings are wrong", next_step="correct them"),
    errors.EnvironmentProblem("no Java", next_step="install Java 17"),
    errors.RegistryUnreachable("HTTP 503", next_step="look after it"),
    errors.KafkaError("no answer", next_step="wait"),
    errors.TableError("another stream's", next_step="choose another root"),
    errors.CommitUnknown("nobody answered", next_step="start again"),
    errors.StateError("a file is gone", next_step="restore it"),
    errors.Fenced(3, 4),
    errors.StreamHalted("books", (FINDING,)),
    errors.IntegrityLost("books", (FINDING,)),
    errors.Violation(1, 2, "checksum of the book"),
)


def test_every_error_of_the_tree_is_tried_here() -> None:
    def below(kind: type[LockstepError]) -> set[type[LockstepError]]:
        own = {each for each in kind.__subclasses__() if each.__module__ == errors.__name__}
        return own.union(*(below(each) for each in own))

    assert {type(error) for error in EVERY} == below(LockstepError)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_from_a_worker(error: LockstepError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_ends_with_its_next_step(error: LockstepError) -> None:
    assert error.next_step
    assert str(error) == f"{error.problem}\n  next: {error.next_step}"


def test_a_halt_names_where_what_and_the_command_that_resumes() -> None:
    assert str(errors.IntegrityLost("books", (FINDING,))) == (
        "stream books is halted:\n"
        "  gap at books.eth/0 offset 120, session 'eth': expected 7, found 9, missing 7 to 8\n"
        "  next: find the cause, then: lockstep resume books --skip-session books.eth/0/eth --why '...'"
        " (or --mended, where it was mended)"
    )


def test_a_finding_over_many_offsets_names_the_first_and_the_last() -> None:
    finding = Finding(cause="hole", topic="t", topic_id="id", partition=2, offset=5, until=9, detail="why")
    assert str(finding) == "hole at t/2 offset 5 to 8 (why)"
