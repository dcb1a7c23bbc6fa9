"""The text of a finding: what a producer sent stays inside of one line."""

from __future__ import annotations

from lockstep.model.finding import Finding


def test_a_value_makes_no_second_line_and_moves_no_cursor() -> None:
    detail = "Invalid value 'z\nERROR forged \x1b[31m\u202e' - at `$.type`"
    finding = Finding("undecodable", "a", "id", 0, 5, 6, expected="1\n2", found="\r3", detail=detail)
    said = r"expected 1\n2, found \r3 (Invalid value 'z\nERROR forged \x1b[31m\u202e' - at `$.type`)"
    assert str(finding) == f"undecodable at a/0 offset 5: {said}"
    assert finding.detail == detail
