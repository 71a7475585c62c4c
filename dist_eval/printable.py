"""Makes untrusted text, such as servers' errors and names in files, safe for a terminal or a page."""

from __future__ import annotations

import re

# Controls, lone surrogates, bidirectional controls, which reorder text, and line ends. Joiners stay, because some
# scripts need them.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_BREAKS = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")


def printable(text: str, limit: int | None = None) -> str:
    r"""Returns a text in one line, with control characters escaped, and truncated after `limit` of its characters.

    Examples:
        >>> printable("a\x1b[2Jb\nc")
        'a\\x1b[2Jb c'
        >>> printable("abcdef", 3)
        'abc...'
    """
    cut = text if limit is None else text[:limit]
    if cut.isprintable():
        clean = cut
    else:
        clean = _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], _LINE_BREAKS.sub(" ", cut))
    return clean if len(cut) == len(text) else clean + "..."


def printable_lines(text: str) -> str:
    """Applies `printable` to each line of a text, and keeps the lines."""
    return "\n".join(map(printable, text.split("\n")))
