"""What the pages of all kinds of runs share: template engine, style, script, and the list of mistakes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dist_eval.tables import format_count

PAGE_SIZE = 25
"""Mistakes on a page of the list."""

MOST_PAIRS = 45
"""Pairs of ten runs; with many more tests, the resamples of a bootstrap allow no p-value small enough for Holm's."""

_MOST_CHOICES = 200


@dataclass(frozen=True)
class Contents:
    """The data that a report contains.

    Attributes:
        texts: whether mistakes are shown with their texts.
        dataset: current location of the dataset; None for that of the run.
        most: maximum number of mistakes.
        longest: maximum number of characters of a text.
    """

    texts: bool = False
    dataset: str | Sequence[str] | None = None
    most: int = 1000
    longest: int = 1000


def render_run(
    template: str, *, rows: Sequence[Sequence[str]], pairs: Sequence[Sequence[Any]] = (), **context: Any
) -> str:
    """Renders the page of a run.

    Args:
        template: name of a template that extends `page.html.jinja`.
        rows: number, label, prediction, score and text of each mistake.
        pairs: label, prediction and number of mistakes of pairs of which `rows` may hold only a part.
        **context: what the template shows.
    """
    data = {"rows": rows, "pairs": pairs, "page_size": PAGE_SIZE, "most_choices": _MOST_CHOICES}
    return render_page(template, "report.js", rows=rows, page_size=PAGE_SIZE, data=data, **context)


def render_page(template: str, script: str, **context: Any) -> str:
    """Renders a page.

    Args:
        template: name of a template that extends `base.html.jinja`.
        script: name of the page's script.
        **context: what the template shows.
    """
    import jinja2

    templates = jinja2.PackageLoader("dist_eval.report")
    environment = jinja2.Environment(
        loader=templates, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["format_count"] = format_count
    # the source, not a template: the hash must be that of the text in the page
    style, source = (templates.get_source(environment, name)[0] for name in ("report.css", script))
    return environment.get_template(template).render(
        style=_trusted(style),
        script=_trusted(source),
        style_hash=_hash(style),
        script_hash=_hash(source),
        **context,
    )


def confidence_words(confidence: float | None) -> str:
    """Returns the heading of a column with intervals."""
    return f"{100 * confidence:g} % interval" if confidence else "interval"


def cut(text: str, longest: int) -> str:
    """Returns a text, or its beginning."""
    return text if len(text) <= longest else text[:longest] + " […]"


def _hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _trusted(source: str) -> Any:
    from markupsafe import Markup

    return Markup(source)
