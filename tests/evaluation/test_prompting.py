"""Whole runs of a language model with label words."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pandas
import pytest
from conftest import results_of, run_here
from samples import DEAD_PEER, digits
from transformers import AutoTokenizer

from dist_eval import demo

if TYPE_CHECKING:
    from dist_eval.petals.server.private import PrivateSwarm

DIGITS = [f"{digit}=<{digit}>" for digit in range(10)]
PREDICTIONS = "predictions.parquet"


def options_of(tmp_path: Path, *words: str) -> list[str]:
    data = digits(tmp_path / "data.csv", rows=120)
    return [
        *("-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--dataset", str(data), "--prompt", "{text}"),
        *("--label-delimiter", "", "--label-words", *words, "--report", "texts"),
    ]


def test_a_language_model_classifies_as_well_without_a_tuned_head(
    demo_swarm: PrivateSwarm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = options_of(tmp_path, *DIGITS)
    for name, where in (("swarm", ["--initial-peers", *demo_swarm.initial_peers]), ("local", ["--backend", "local"])):
        assert run_here(*options, *where, "--output", str(tmp_path / name)) == 0, capfd.readouterr().err
    on_swarm, here = (results_of(tmp_path / name) for name in ("swarm", "local"))
    assert here["metrics"]["accuracy"] > 0.9
    assert on_swarm["confusion_matrix"] == here["confusion_matrix"]
    assert here["model"]["prompt"]["words"] == [f"<{digit}>" for digit in range(10)]
    assert "label words" in (tmp_path / "local" / "report.html").read_text()
    # the swarm may have gone when a complete run is started again
    assert run_here(*options, "--initial-peers", DEAD_PEER, "--output", str(tmp_path / "swarm")) == 0
    assert "Nothing was sent" in capfd.readouterr().out


@pytest.mark.slow
def test_words_of_several_tokens_after_examples_resume_and_ask_for_the_same_prompt(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["0=1<0>", *DIGITS[1:]]
    options = [
        *options_of(tmp_path, *words),
        *("--few-shot", "2", "--few-shot-from", str(demo.TRAIN_DATA), "--max-length", "200"),
        *("--backend", "local", "--output", str(tmp_path / "out")),
    ]
    assert run_here(*options) == 0, capfd.readouterr().err
    results, table = results_of(tmp_path / "out"), pandas.read_parquet(tmp_path / "out" / PREDICTIONS)
    assert len(results["model"]["prompt"]["few_shot_rows"]) == 2
    assert len(table) == 120
    assert table["loss"].notna().all()
    assert run_here(*options, "--few-shot-seed", "1") == 1
    assert "prompt and label words" in capfd.readouterr().err


def test_a_run_resumes_with_the_date_that_its_chat_template_showed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(demo.BASE_MODEL, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for c in strftime_now('%d%H') %}<{{ c }}>{% endfor %}{{ messages[0].content }}"
    tokenizer.save_pretrained(model)
    options = options_of(tmp_path, *DIGITS)
    options[options.index("--model") + 1] = str(model)
    options += ["--apply-chat-template", "--backend", "local", "--limit", "8", "--output", str(tmp_path / "out")]
    try:
        for zone in ("Etc/GMT+12", "Etc/GMT-14"):  # it is never the same day there
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert run_here(*options) == 0, capfd.readouterr().err
            assert len(results_of(tmp_path / "out")["chat_time"]) == len("2026-01-01T12:00:00")
        assert "Nothing was sent" in capfd.readouterr().out
        (tmp_path / "out" / "results.json").unlink()  # nothing else knows the date
        assert run_here(*options) == 1
        assert "it differs in" in capfd.readouterr().err
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
