"""Messages as text: the meaning of each line, and the errors about lines without a meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.errors import LockstepError
from lockstep.testing import CRASH, RENUMBER, RESTART, Idle, NewTopic, ScriptLine, SentMessage, parse, read_messages
from lockstep.testing.script import GARBAGE

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
# Nothing is said here.
    # Nor here.
snapshot a 1 {"level": 5}
update a 2 @90
skip b -3
"""


def values(text: str) -> list[bytes | None]:
    return [step.value for step in parse(text) if isinstance(step, SentMessage)]


def test_a_message_has_kind_session_number_second_and_fields() -> None:
    assert parse(TEXT) == [
        SentMessage(value=b'{"type":"snapshot","number":1,"level":5}', key="a", timestamp_ms=1_000),
        SentMessage(value=b'{"type":"update","number":2}', key="a", timestamp_ms=90_000),
        SentMessage(value=b'{"type":"skip","number":-3}', key="b", timestamp_ms=91_000),
    ]


def test_a_header_without_a_value_has_none_as_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "halted.jsonl"
    file.write_text('{"value":"e30=","headers":[{"name":"trace","value":null},{"name":"empty","value":""}]}')
    (message,) = read_messages(file)
    assert (message.value, message.headers) == (b"{}", (("trace", None), ("empty", b"")))


def test_a_stream_may_encode_as_it_likes() -> None:
    def encode(line: ScriptLine) -> bytes:
        return f"{line.kind}|{line.session}|{line.number}|{line.second}|{line.fields}".encode()

    assert [step.value for step in parse("add x 7 @3", encode) if isinstance(step, SentMessage)] == [b"add|x|7|3|{}"]


def test_a_gap_loses_the_next_message_and_a_swap_sends_it_before_the_last() -> None:
    kept = values("update a 1\ngap\nupdate a 2\nupdate a 3\nswap\nupdate a 4")
    assert [value[-2:-1] for value in kept if value] == [b"1", b"4", b"3"]


def test_a_repeat_is_the_last_message_again_and_garbage_is_no_message() -> None:
    one, two, garbage, nothing = values("update a 1\nrepeat\ngarbage a\nnull a")
    assert (one == two, garbage, nothing) == (True, GARBAGE, None)


def test_events_stand_between_messages() -> None:
    text = "CRASH\nRESTART\nRENUMBER\nNEW_TOPIC x.b\nIDLE @90"
    assert parse(text) == [CRASH, RESTART, RENUMBER, NewTopic("x.b"), Idle(90_000_000)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("update a", "line 1, 'update a': not a line of the language: KIND SESSION NUMBER"),
        ("\nupdate a one", "line 2, 'update a one': not a line of the language"),
        ("update a 1 {", "line 1, 'update a 1 {': not a line of the language"),
        ("update a 1 {x}", "line 1, 'update a 1 {x}': the fields are not JSON"),
        ("repeat", "line 1, 'repeat': `repeat` wants a message before it"),
        ("CRASH\nswap\nupdate a 1", "line 3, 'update a 1': `swap` wants a message before it"),
        ("update a 1\ngap", "line 2, 'gap': wants a message after it"),
        ("update a 1\ngap\nCRASH", "line 3, 'CRASH': `gap` wants a message after it, not CRASH"),
        ("update a 1\nrepeat 2", "line 2, 'repeat 2': nothing may follow repeat"),
        ("CRASH now", "line 1, 'CRASH now': nothing may follow CRASH"),
        ("NEW_TOPIC", "line 1, 'NEW_TOPIC': the form is `NEW_TOPIC NAME`"),
        ("garbage", "line 1, 'garbage': the form is `garbage SESSION`"),
        ("IDLE 90", "line 1, 'IDLE 90': IDLE names a second: IDLE @90"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(LockstepError) as told:
        parse(text)
    assert told.value.problem.startswith(problem)
    assert told.value.next_step == "docs/testing.md lists the lines there are"
