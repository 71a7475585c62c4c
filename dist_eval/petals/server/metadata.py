"""Reads metadata of requests within bounds, and checks each field."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dist_eval.petals.client.protocol import ROLLS_BACK
from dist_eval.printable import printable

METADATA_BYTES, METADATA_DEPTH = 1 << 16, 8
"""Largest metadata of a message, and deepest nesting of its lists and maps."""

_LONGEST_NAME, _SHOWN = 256, 60
_MOST_SERVERS, _MOST_BLOCKS = 1024, 1 << 14  # of the servers to push a session's outputs to
_TUPLE = 0x40  # hivemind's type code of a tuple
_PLAIN, _FLOAT16 = 0, 2  # of `CompressionType`


class Refused(ValueError):
    """A message that no honest client sends, or that exceeds a bound."""

    __repr__ = ValueError.__str__  # hivemind sends clients the representation


def checked_metadata(data: bytes) -> dict[str, Any]:
    """Reads the metadata of a message (see `read_metadata`), and refuses fields with invalid values.

    Unknown fields may have any value.
    """
    metadata = read_metadata(data)
    for name, is_valid in FIELDS.items():
        if (value := metadata.get(name)) is not None and not is_valid(value):
            raise Refused(f"metadata: {name} cannot be {shown(value)}")
    return metadata


def read_metadata(data: bytes) -> dict[str, Any]:
    """Reads the metadata of a message, as `MSGPackSerializer` of hivemind writes it.

    Raises `Refused` if it is too large or too deep, or not a map.
    """
    if len(data) > METADATA_BYTES:
        raise Refused(f"metadata of {len(data)} bytes: at most {METADATA_BYTES} are read")
    value = _loaded(data, METADATA_DEPTH) if data else {}
    if not isinstance(value, dict):
        raise Refused(f"metadata must be a map, not {shown(value)}")
    _require_shallow(value, METADATA_DEPTH)
    return value


def _loaded(data: bytes, depth: int) -> Any:
    """Reads a value with limited depth: each tuple is a nested message, decoded by recursion."""
    import msgpack

    def tuple_of(code: int, content: bytes) -> Any:
        if code != _TUPLE or not depth:
            raise Refused(f"metadata of type {code}, or nested more than {METADATA_DEPTH} deep")
        return tuple(_loaded(content, depth - 1))

    try:
        return msgpack.unpackb(data, ext_hook=tuple_of, raw=False)
    except Refused:
        raise
    except Exception as error:  # any error of msgpack with arbitrary bytes
        raise Refused(f"metadata that cannot be read ({type(error).__name__})") from None


def _require_shallow(value: Any, depth: int) -> None:
    if isinstance(value, (dict, list, tuple)):
        if not depth:
            raise Refused(f"metadata nested more than {METADATA_DEPTH} deep")
        for inner in value.values() if isinstance(value, dict) else value:
            _require_shallow(inner, depth - 1)


def is_int(value: Any) -> bool:
    """Whether this is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (is_int(value) or isinstance(value, float)) and math.isfinite(value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME


def _is_list(value: Any, most: int, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= most and all(map(is_valid, value))


def _is_server(value: Any) -> bool:
    """Whether this is a peer with its session, and its first and one-past-last blocks."""
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        return False
    peer, session, start, end = value
    return _is_name(peer) and _is_name(session) and all(map(is_int, (start, end))) and 0 <= start < end <= _MOST_BLOCKS


FIELDS: dict[str, Callable[[Any], bool]] = {
    "points": _is_number,
    "active_adapter": lambda value: isinstance(value, str),
    "args_structure": lambda value: _is_list(value, 2, lambda part: isinstance(part, (list, tuple, dict))),
    "output_compression": lambda value: _is_list(value, 2, lambda kind: is_int(kind) and kind in (_PLAIN, _FLOAT16)),
    "max_length": is_int,
    "alloc_timeout": lambda value: _is_number(value) and value >= 0,
    "session_id": _is_name,
    "step_id": _is_name,
    "next_servers": lambda value: _is_list(value, _MOST_SERVERS, _is_server),
    "start_from_position": is_int,
    ROLLS_BACK: lambda value: isinstance(value, bool),
}
"""For each field that a server reads, a function that checks its value."""


def shown(value: Any) -> str:
    """Formats a client's value for an error message."""
    return printable(repr(value[:_SHOWN] if isinstance(value, (str, bytes, list, tuple)) else value), _SHOWN)
