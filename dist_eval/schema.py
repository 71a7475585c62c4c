"""`dist-eval schema`: prints the JSON Schema of `results.json` (draft 2020-12), which says what stands there.

The schema is the file `results.schema.json` of the package. It is strict: what it does not name does not occur.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import resources
from typing import Any

SCHEMA_VERSION = 1
"""Counts changes of `results.json` that a reader could stumble over."""

_FILE = "results.schema.json"


def results_schema() -> dict[str, Any]:
    """Returns the schema, for a validator of JSON.

    Examples:
        >>> results_schema()["properties"]["schema_version"]["const"] == SCHEMA_VERSION
        True
    """
    return json.loads(_text())


def _text() -> str:
    return resources.files("dist_eval").joinpath(_FILE).read_text(encoding="utf-8")


def build_parser() -> argparse.ArgumentParser:
    """Makes the command line's parser, which knows --help only."""
    return argparse.ArgumentParser(
        prog="dist-eval schema",
        description="Prints the JSON Schema of results.json (draft 2020-12).",
        allow_abbrev=False,
    )


if __name__ == "__main__":
    build_parser().parse_args()
    sys.stdout.write(_text())
