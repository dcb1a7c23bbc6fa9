"""Logs of the live platform stay small, while processes go on appending to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.localdev.log_rotation import rotate

if TYPE_CHECKING:
    from pathlib import Path


def test_a_log_that_has_grown_is_set_aside_and_its_writer_goes_on_at_the_beginning(tmp_path: Path) -> None:
    log, small = tmp_path / "code.log", tmp_path / "web.log"
    small.write_bytes(b"small")
    with log.open("ab", buffering=0) as writer:
        for number in range(3):
            writer.write(f"{number}".encode() * 101)
            assert rotate(tmp_path, limit_bytes=100) == [log]
            assert (tmp_path / "code.log.1").read_bytes() == f"{number}".encode() * 101
        writer.write(b"on")
    assert rotate(tmp_path, limit_bytes=100) == []
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "code.log": 2,
        "code.log.1": 101,
        "web.log": 5,
    }
