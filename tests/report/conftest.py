"""Finished runs to show, and a browser to look at them with."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import run_here
from report_runs import HOSTILE, synthetic_run

from dist_eval import demo
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; as long as it is there, playwright runs an event loop that other tests cannot have."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no Chromium here (on Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tabs(browser: Any) -> Any:
    """A page for each way of looking at it: a new one takes longer than most of what tests do with it."""
    made: dict[str, Any] = {}

    def tab(**options: Any) -> Any:
        name = repr(options)
        if name not in made:
            made[name] = browser.new_context(**options).new_page()
        return made[name]

    return tab


class Made(dict[str, Path]):
    """Files or folders by kind, each made when it is first asked for."""

    def __init__(self, make: Callable[[str], Path]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, kind: str) -> Path:
        self[kind] = self._make(kind)
        return self[kind]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Complete runs: synthetic ones of every problem type and with many classes; real ones with slices and groups."""
    folder = tmp_path_factory.mktemp("finished")
    makers = {
        "single": lambda: synthetic_run(folder / "single", ["negative", "neutral", "positive"]),
        "multi": lambda: synthetic_run(
            folder / "multi", ["sport", "politics", "weather"], problem=MULTI_LABEL, skill=1.0
        ),
        "regression": lambda: synthetic_run(folder / "regression", ["stars", "price"], problem=REGRESSION),
        "many": lambda: synthetic_run(folder / "many", [f"intent number {n}" for n in range(60)], 1200, skill=1.0),
        "sliced": lambda: sliced_run(folder),
        "labels": lambda: real_run(
            folder / "labels",
            [f"topic {n}" for n in range(6)],
            [(text, f"topic {n % 6}|topic {(n + n % 4 + 1) % 6}") for n, text in enumerate(HOSTILE * 12)],
            "multi_label_classification",
            *("--slice-by", "length"),
            spread=1.0,
        ),
    }
    return Made(lambda kind: makers[kind]())


def sliced_run(folder: Path) -> Path:
    """A real run on one rank, on the embedded data with further columns: sources, some missing or odd; documents."""
    with demo.TEST_DATA.open(newline="") as file:
        rows = list(csv.DictReader(file))
    sources = ["news", "<b>blog</b>", "", "forum", None]
    with (folder / "digits.jsonl").open("w") as file:
        for number, row in enumerate(rows):
            source = "only once" if number == 7 else sources[number % 5]
            further = {"source": source, "document": number // 6, "score": number % 97 / 4}
            file.write(json.dumps({"text": row["text"], "label": int(row["label"]), **further}) + "\n")
    options = (
        *("--backend", "local", "--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT)),
        *("--dataset", str(folder / "digits.jsonl"), "--output", str(folder / "sliced")),
        *("--slice-by", "source", "score", "length", "--group-column", "document"),
    )
    assert run_here("-m", "dist_eval", *options) == 0
    return folder / "sliced"


def real_run(
    output: Path, names: list[str], rows: Sequence[tuple[Any, ...]], problem: str, *options: str, spread: float = 0.02
) -> Path:
    """A real run on one rank, of a tiny classifier whose random weights have this standard deviation."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = output.with_name(f"{output.name}-inputs")
    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    heads = {"id2label": dict(enumerate(names)), "problem_type": problem}
    config = BertConfig(vocab_size=len(tokenizer), initializer_range=spread, **sizes, **heads)
    BertForSequenceClassification(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    with (folder / "data.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    inputs = ("--backend", "local", "--model", str(folder / "model"), "--dataset", str(folder / "data.csv"))
    assert run_here("-m", "dist_eval", *inputs, *options, "--output", str(output)) == 0
    return output


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run on texts and with names of classes that try to break out of the page."""
    names = ['<b onmouseover="window.ran=1">', "</td></table>", "a & b"]
    rows = [(f"{text} {row}", row % 3) for row, text in enumerate(HOSTILE * 12)]
    rows += [("long " * 900, 0), ("long " * 900, 1)]
    output = tmp_path_factory.mktemp("hostile") / "<i>run"
    return real_run(output, names, rows, "single_label_classification", "--report", "texts")
