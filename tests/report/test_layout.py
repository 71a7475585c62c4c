"""The layout of the page in print and on a phone, and what its tables leave out."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from report_runs import synthetic_run
from samples import rewrite_results

from dist_eval.analysis.options import AnalysisOptions
from dist_eval.analysis.slices import Slicing
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION
from dist_eval.report.page import write_report

PHONE, PAPER = {"width": 390, "height": 844}, {"width": 718, "height": 1000}
LONG = [f"request about {what} of an account and all that belongs to it" for what in ("opening", "closing", "merging")]

Open = Callable[..., Any]


def view(examples: int, groups: int = 0) -> AnalysisOptions:
    """Slices by a column with a rare value and a long one, and by length."""
    sources = ["news", "a blog with a rather long name of its own", None]
    column = pa.array(["rare" if number < 5 else sources[number % 3] for number in range(examples)])
    slicings = [Slicing.of_column("source", column), Slicing.of_lengths(np.arange(examples) % 97)]
    if not groups:
        return AnalysisOptions(slicings=slicings)
    return AnalysisOptions(slicings=slicings, group_column="document", group_of=np.arange(examples) % groups)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("layout")
    short, names = ["yes", "no", "maybe"], [*LONG, *LONG[0].split()[:6]]
    made = {
        "grouped": synthetic_run(folder / "grouped", short, analysis_options=view(300, groups=12)),
        "long": synthetic_run(folder / "long", names, 600, analysis_options=view(600)),
        "labels": synthetic_run(folder / "labels", LONG, problem=MULTI_LABEL, skill=1.0, analysis_options=view(300)),
        "regression": synthetic_run(
            folder / "regression", ["stars", LONG[0]], problem=REGRESSION, analysis_options=view(300)
        ),
    }
    return {name: write_report(run) for name, run in made.items()}


@pytest.fixture
def visit(tabs: Any, pages: dict[str, Path]) -> Open:
    def open_page(kind: str, viewport: dict[str, int], media: str = "screen") -> Any:
        page = tabs(viewport=viewport)
        page.goto(pages[kind].as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.emulate_media(media=media)
        return page

    return open_page


def test_the_run_says_how_it_was_made(pages: dict[str, Path], visit: Open, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(pages["grouped"].parent, folder)
    results = json.loads((folder / "results.json").read_text())
    asked = {"max_length": 64, "confidence": 0.9, "group_column": "document", "slice_by": ["source", "length"]}
    results["config"] |= {**asked, "metric": ["/home/someone/own.py:worst", "package:best"], "compression": "float16"}
    results["data"]["truncated"] = 3
    rewrite_results(folder, results)
    page = visit("grouped", PHONE)
    page.goto(write_report(folder).as_uri())
    names, values = (page.locator(f"#run {what}").all_inner_texts() for what in ("dt", "dd"))
    facts = dict(zip(names, values, strict=True))
    assert {
        "backend": "petals: on a swarm, activations sent as float16",
        "--max-length": "64 tokens; 3 texts cut",
        "custom metrics": "own.py:worst, package:best",
        "--confidence": "0.9",
        "--group-column": "document",
        "--slice-by": "source, length",
        "ranks": "3 on 1 host",
    }.items() <= facts.items()


def test_a_reason_stands_once_below_a_table(visit: Open) -> None:
    page = visit("grouped", {"width": 1280, "height": 900})
    for table in page.locator("#calibration table >> nth=1, #slices table").all():
        assert "(1)" in table.inner_text() and "fewer than" not in table.inner_text()
        notes = table.locator("xpath=../following-sibling::*[1]").inner_text()
        assert notes.startswith("(1) ") and "fewer than" in notes
    rows = page.locator("#slices tbody tr").evaluate_all("(all) => all.map((one) => one.offsetHeight)")
    assert max(rows) < 60


def test_a_metric_undefined_in_all_slices_has_no_column(visit: Open) -> None:
    by_source, by_length = visit("long", {"width": 1280, "height": 900}).locator("#slices .wide").all()
    heads = [table.locator("thead th:visible").all_inner_texts() for table in (by_source, by_length)]
    assert heads == [[by, "examples", "accuracy"] for by in ("source", "length")]
    words = by_length.locator("xpath=following-sibling::div").inner_text()
    assert words.startswith("No slice has f1_macro") and "fewer than 20 examples in the slice" in words


COLUMNS = """(height) => {
  const main = document.querySelector("main"), gap = 40;
  main.removeAttribute("style");
  const width = main.clientWidth;
  Object.assign(main.style, { height: height + "px", width: width + "px", columnWidth: width + "px",
                              columnGap: gap + "px", columnFill: "auto" });
  const left = main.getBoundingClientRect().left;
  const page = (one) => Math.floor((one.getClientRects()[0].left - left) / (width + gap));
  const apart = [], follow = (one, next) => {
    if (next && next.getClientRects().length && page(one) !== page(next)) apart.push(one.textContent.slice(0, 60));
  };
  main.querySelectorAll("h2").forEach((one) => follow(one, one.nextElementSibling));
  main.querySelectorAll("section > p:has(+ figure)").forEach(
    (one) => follow(one, one.nextElementSibling.querySelector("img")));
  main.querySelectorAll("table").forEach((one) => follow(one.caption || one.tHead, one.querySelector("tbody tr")));
  main.querySelectorAll(".notes").forEach(
    (one) => follow(one.previousElementSibling.querySelector("tbody tr:last-child"), one));
  const lows = {};
  main.querySelectorAll("img, tr, p, li, dd, h2, figure").forEach((one) => {
    for (const box of one.getClientRects()) {
      const at = Math.floor((box.left - left) / (width + gap));
      lows[at] = Math.max(lows[at] || 0, box.bottom - main.getBoundingClientRect().top);
    }
  });
  return [apart, Object.values(lows)];
}"""
"""Breaks the page into columns as high as a sheet of paper, which a browser breaks by the same rules, and returns what
is torn from what follows it, and how far down each column is filled."""


@pytest.mark.parametrize("kind", ["grouped", "long", "labels", "regression"])
def test_page_breaks_keep_sections_together(visit: Open, kind: str) -> None:
    page = visit(kind, PAPER, "print")
    for height in range(940, 1090, 35):
        apart, lows = page.evaluate(COLUMNS, height)
        assert apart == [], height
        assert len(lows) > 2
        assert min(lows[:-1]) > 0.5 * height, "no half-empty page"


def test_long_names_make_no_tall_rows_on_a_phone(visit: Open) -> None:
    for kind in ("long", "labels", "regression"):
        rows = visit(kind, PHONE).locator("tbody tr").evaluate_all("(all) => all.map((one) => one.offsetHeight)")
        assert max(rows) < 120, kind


def edge(page: Any, table: Any) -> float:
    """Returns how light the right edge of a table is, between 0 and 255."""
    from PIL import Image

    box = table.bounding_box()
    clip = {"x": box["x"] + box["width"] - 3, "y": box["y"] + 2, "width": 3, "height": 16}
    return float(np.asarray(Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True))).convert("L")).mean())


def test_a_table_that_scrolls_says_so_and_keeps_its_caption(visit: Open) -> None:
    page = visit("regression", PHONE)
    [wide] = page.locator("#by-output .wide").all()
    narrow = page.locator("#metrics .wide").first
    assert edge(page, wide) < 235 < 254 < edge(page, narrow)
    wide.evaluate("(one) => { one.scrollLeft = one.scrollWidth; }")
    assert wide.evaluate("(one) => one.scrollLeft") > 20
    assert edge(page, wide) > 254, "there is no more on this side"
    for caption in page.locator("caption:visible").all():
        caption.locator("xpath=../..").evaluate("(one) => { one.scrollLeft = one.scrollWidth; }")
        box = caption.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"], caption.inner_text()
