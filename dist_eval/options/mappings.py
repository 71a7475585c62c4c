"""Options whose value is a mapping, on the command line as the lm-evaluation-harness reads them: KEY=VALUE, or JSON."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dist_eval.errors import ConfigError, one_line, os_reason
from dist_eval.process.files import is_utf8
from dist_eval.process.parsing import parse_json, read_json


class MergeMappings(argparse.Action):
    """Merges the mappings that an option's words are; of a key that several have, the last one counts."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Adds to what the option has been given before."""
        merged = dict(getattr(namespace, self.dest, {}))
        for mapping in values:
            merged.update(mapping)
        setattr(namespace, self.dest, merged)


def key_values(text: str) -> dict[str, Any]:
    """Reads `temperature=0.7,until=["a", "b"]`, or a JSON object, as the harness' own command line does."""
    if text.lstrip().startswith("{"):
        return dict(json_mapping(text))
    require_harness()
    from lm_eval._cli.utils import key_val_to_dict

    try:
        return dict(key_val_to_dict(text))
    except (ValueError, TypeError, RecursionError, MemoryError) as error:  # of what its values are evaluated by
        raise argparse.ArgumentTypeError(one_line(error)) from error


def json_mapping(text: str) -> Any:
    """Reads a JSON object, or the file with one that is named."""
    is_json = text.lstrip().startswith("{")
    try:
        return parse_json(text) if is_json else read_json(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} is no JSON, and cannot be read ({os_reason(error)})") from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{'' if is_json else text + ' '}is no JSON: {one_line(error)}") from error


def require_recordable(name: str, mapping: Any) -> None:
    """Checks that an option can be written into results.

    Args:
        name: the option.
        mapping: its value.

    Raises:
        ConfigError: it is no mapping from texts to what JSON has.
    """
    if not isinstance(mapping, dict):
        raise ConfigError(f"{name} takes a mapping, not {mapping!r:.40}.")
    try:
        text = json.dumps(mapping, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be written as JSON: {one_line(error)}.") from error
    if not (is_utf8(text) and all(isinstance(key, str) for key in mapping)):
        raise ConfigError(f"{name} {mapping!r:.40} has a key that is no text, or what is not UTF-8.")


def require_harness() -> None:
    """Checks that the harness is installed.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("lm_eval") is None:
        raise ConfigError(
            "The lm-evaluation-harness is not installed: `uv sync --extra harness` installs it, or start the command "
            "with `uv run --extra harness`."
        )
