"""Finished runs to show, and a browser to look at them with."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import CALIBRATION, HOSTILE, SLICES, made_up_run

from dist_eval import demo
from dist_eval.problems import MULTI_LABEL, REGRESSION

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no Chromium here (on Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs of every problem, and one with many classes."""
    folder = tmp_path_factory.mktemp("finished")
    return {
        "single": made_up_run(
            folder / "single", ["negative", "neutral", "positive"], calibration=CALIBRATION, slices=SLICES
        ),
        "multi": made_up_run(folder / "multi", ["sport", "politics", "weather"], problem=MULTI_LABEL, skill=1.0),
        "regression": made_up_run(folder / "regression", ["stars", "price"], problem=REGRESSION),
        "many": made_up_run(folder / "many", [f"intent number {n}" for n in range(150)], 3000, skill=1.0),
    }


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run on one rank, on texts and with names of classes that try to break out of the page."""
    import torch
    from conftest import run_here
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("hostile")
    names = ['<b onmouseover="window.ran=1">', "</td></table>", "a & b"]
    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=len(tokenizer), id2label=dict(enumerate(names)), **sizes)
    BertForSequenceClassification(config).save_pretrained(folder / "model", safe_serialization=True)
    tokenizer.save_pretrained(folder / "model")
    with (folder / "data.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [(f"{text} {row}", row % 3) for row, text in enumerate(HOSTILE * 12)]
        csv.writer(file).writerows([("text", "label"), *rows, ("long " * 900, 0), ("long " * 900, 1)])
    options = ("--backend", "local", "--model", str(folder / "model"), "--dataset", str(folder / "data.csv"))
    output = folder / "<i>run"
    assert run_here("-m", "dist_eval", *options, "--report", "texts", "--output", str(output)) == 0
    return output
