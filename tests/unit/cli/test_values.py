"""The output of commands for a message and for a start."""

from __future__ import annotations

import pytest

from lockstep.cli.control import describe_launch
from lockstep.cli.messages import make_contents
from lockstep.cli.output import make_lines, print_out
from lockstep.operations.inspect.message import StoredMessage
from lockstep.orchestration.launch import Launched


def test_a_value_of_printable_text_is_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(b'{"city": "M\xc3\xbcnchen"}', capsys) == ["value: 20 bytes", '  {"city": "M\u00fcnchen"}']
    assert printed(b'{\n  "error": 1\n}', capsys) == ["value: 16 bytes", "  {", '    "error": 1', "  }"]
    assert printed(b"", capsys) == ["value: 0 bytes"]


@pytest.mark.parametrize(
    "value", [b"\x00\x01", b"\xff", b"ab\x1b[2J", "a\u202eb".encode(), b"M\xc3", b"a\r\nb", b"a\tb"]
)
def test_any_other_value_is_printed_byte_by_byte(value: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    _, dump = printed(value, capsys)
    assert dump.startswith(f"00000000  {value.hex(' ')}")


def test_a_long_text_is_cut_at_a_character(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(b"x" + "\u00fc".encode() * 400, capsys)
    assert said == ["value: 801 bytes", "  x" + "\u00fc" * 255, "... 289 bytes more: as a file, or --json"]


def printed(value: bytes, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the printed lines after the key."""
    print_out(make_lines(*make_contents(van_message(value))))
    key, *lines = capsys.readouterr().out.splitlines()
    assert key == "key: van"
    return lines


def van_message(value: bytes) -> StoredMessage:
    return StoredMessage(
        topic="fleet.berlin",
        partition=0,
        offset=1,
        found_in="Kafka",
        timestamp=None,
        key=b"van",
        value=value,
        value_bytes=len(value),
        headers=[],
    )


def test_a_start_beside_a_live_writer_says_how_new_code_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_out(describe_launch(Launched("fleet", "fleet_stream", "", "home", epoch=8)))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "fleet: epoch 8 is writing already; nothing was started"
    assert second.startswith("to run new code: launch the job fleet_stream in Dagster, whose run takes over, or")
    assert second.endswith("or lockstep stop fleet, then lockstep start fleet")
