"""Builds the reference page of the public API from its docstrings: `uv run python .ci/reference.py FOLDER`.

What is public says the docstring of the package.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

import pdoc

import dist_eval
from dist_eval.options.config import flag

MODULES = ("dist_eval", *(f"dist_eval.{name}" for name in ("demo", "errors", "schema", "statistics")))


def prepare() -> None:
    """Loads what is loaded when first used, and describes each option as `--help` does."""
    vars(dist_eval).update({name: getattr(dist_eval, name) for name in dist_eval.__all__})
    config = dist_eval.EvaluationConfig
    options = [f"    {one.name}: `{flag(one.name)}`: {one.metadata['help']}." for one in dataclasses.fields(config)]
    config.__doc__ = "\n".join([inspect.getdoc(config) or "", "", "Attributes:", *options])


def build(folder: Path) -> None:
    """Writes the pages."""
    prepare()
    pdoc.render.configure(docformat="google", show_source=False, search=False)
    pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    build(Path(sys.argv[1]))
