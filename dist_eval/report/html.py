"""Renders a document as one self-contained HTML file.

Values from the data are escaped by the template engine, or are in a JSON block that the page's script writes to text
nodes; in addition, a Content-Security-Policy allows only the page's own script and style, by their hashes. Plots are
images, which cannot execute anything. Output is deterministic.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from dist_eval.report.document import Document, Plot

_ROWS, _PAGE_SIZE, _MOST_CHOICES = 200, 25, 200


def render_html(document: Document) -> str:
    """Renders the page of a document."""
    from markupsafe import Markup

    environment = _environment()
    # the source, not a rendered template, so that the hash matches the text in the page
    style, script = (environment.loader.get_source(environment, name)[0] for name in ("report.css", "report.js"))
    mistakes = document.find_mistakes() if document.find_mistakes else None
    rows = mistakes.rows if mistakes else []
    return environment.get_template("page.html.jinja").render(
        document=document,
        mistakes=mistakes,
        data={"rows": rows, "page_size": _PAGE_SIZE, "most_choices": _MOST_CHOICES},
        page_size=_PAGE_SIZE,
        most_rows=_ROWS,
        image_of=_image_of,
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def render_summary(document: Document) -> str:
    """Renders a document as printed on a terminal, as a part of another page, such as a notebook."""
    return _environment().get_template("summary.html.jinja").render(document=document, most_rows=0)


def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("dist_eval.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _image_of(plot: Plot) -> str:
    from dist_eval.runs.plots import to_svg

    return f"data:image/svg+xml;base64,{base64.b64encode(to_svg(plot.draw())).decode()}"


def _hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
