"""Reads JSON and YAML: whatever cannot be read is a `ValueError`."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from dist_eval.errors import one_line

_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


def parse_json(content: bytes | str, **options: Any) -> Any:
    """Parses JSON with options of `json.loads`; raises ValueError if it is malformed, or nested too deeply."""
    try:
        return json.loads(content, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """Reads a JSON file; raises OSError, or ValueError if it is not UTF-8, malformed, or nested too deeply."""
    return parse_json(path.read_text(encoding="utf-8"))


class ExponentText(str):
    """A number such as 2e-5, which YAML 1.1 reads as text and YAML 1.2 as a number; the caller decides."""


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Marks values that are numbers only in YAML 1.2."""

    Loader.add_implicit_resolver("!exponent", _EXPONENT, list("-+.0123456789"))
    Loader.add_constructor("!exponent", lambda loader, node: ExponentText(loader.construct_scalar(node)))
    return Loader


def parse_yaml(content: str) -> Any:
    """Parses YAML of plain values; numbers that YAML 1.1 reads as text are `ExponentText`.

    Raises ValueError if it is malformed, has a key twice, or is nested too deeply.
    """
    import yaml

    try:
        loader = _loader()(content)  # checks for characters that YAML forbids
        node = loader.get_single_node()
        _require_distinct_keys(node)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(one_line(error)) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _require_distinct_keys(root: Any) -> None:
    nodes, known = [root] if root is not None else [], {id(root)}
    while nodes:
        node = nodes.pop()
        parts = node.value if isinstance(node.value, list) else []
        lines: dict[tuple[str, str], int] = {}
        for key, _ in (part for part in parts if isinstance(part, tuple)):
            name, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if name in lines:
                where = f"line {line}" if lines[name] == line else f"lines {lines[name]} and {line}"
                raise ValueError(f"it has {key.value!r} twice, in {where}")
            lines[name] = line
        within = [node for part in parts for node in (part if isinstance(part, tuple) else (part,))]
        nodes += [node for node in within if id(node) not in known]
        known.update(map(id, within))
