"""Text for places where Dagster's web interface expects Markdown, such as the description of a result of a check."""

import re

_SPECIAL = re.compile(r"[\\`*\[\]<>&~]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown reads as more than itself; an underscore between two letters of a name is none."""


def escape_markdown(text: str) -> str:
    """The text so that Dagster shows it letter by letter.

    Producers choose keys and topics: without it, text like HTML is left out, and an image is fetched from
    wherever it names.
    """
    return _SPECIAL.sub(r"\\\g<0>", text)
