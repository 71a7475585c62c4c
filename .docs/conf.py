"""Settings of Sphinx for the documentation site (see `build.py`)."""

import dataclasses
import inspect
from typing import Any

from pygments.lexers.special import TextLexer

import dist_eval
from dist_eval.arguments.fields import flag

project = "dist_eval"
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [".venv", ".cache", "tests"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
default_role = "code"  # of the single backticks in docstrings
html_theme = "furo"
html_title = "dist_eval"
html_show_sourcelink = html_show_copyright = False
highlight_language = "text"
smartquotes = False  # options begin with two dashes


def setup(app: Any) -> None:
    """Loads what is loaded when first used, and describes each option as `--help` does."""
    app.add_lexer("mermaid", TextLexer)
    vars(dist_eval).update({name: getattr(dist_eval, name) for name in dist_eval.__all__})
    config = dist_eval.EvaluationConfig
    options = [
        f"    {field.name}: `{flag(field.name)}`: {field.metadata['help']}.".replace("\\", r"\\").replace("*", r"\*")
        for field in dataclasses.fields(config)
    ]
    config.__doc__ = "\n".join([inspect.getdoc(config) or "", "", "Attributes:", *options])
