"""`dist-eval schema`: prints the JSON Schema of `results.json` (draft 2020-12).

The schema is the file `results.schema.json` of the package. It is strict: additional properties are not allowed.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import resources
from typing import Any

SCHEMA_VERSION = 1
"""Version of `results.json`, incremented by every incompatible change."""

_FILE = "results.schema.json"


def results_schema() -> dict[str, Any]:
    """Returns the schema, for a JSON Schema validator.

    Examples:
        >>> results_schema()["properties"]["schema_version"]["const"] == SCHEMA_VERSION
        True
    """
    return json.loads(_text())


def _text() -> str:
    return resources.files("dist_eval").joinpath(_FILE).read_text(encoding="utf-8")


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser, which has no options except --help."""
    return argparse.ArgumentParser(
        prog="dist-eval schema",
        description="Prints the JSON Schema of results.json (draft 2020-12).",
        allow_abbrev=False,
    )


if __name__ == "__main__":
    build_parser().parse_args()
    sys.stdout.write(_text())
