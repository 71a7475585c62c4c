"""The command line of comparing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dist_eval.compare.__main__ import main


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name at least two runs"),
        (["SECOND", "--metric", "f1"], "--metric f1: no such metric; there are accuracy, "),
        (["SECOND", "--confidence", "95"], "--confidence must be between 0 and 1"),
        (["SECOND", "--resamples", "10"], "--resamples must be at least 99, not 10"),
        (["SECOND", "--metric", "sample_metrics:cost"], "--metric sample_metrics:cost: there is no 'cost'"),
        (["SECOND", "--metric", "sample_metrics:accuracy"], "there is a metric named 'accuracy' already"),
    ],
)
def test_wrong_options_are_said(
    folders: list[Path], capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    second = [str(folders[1]) if option == "SECOND" else option for option in options]
    assert main([str(folders[0]), *second]) == 2
    assert words in capsys.readouterr().err


def test_output_of_custom_metrics_is_not_in_the_json(folders: list[Path]) -> None:
    command = [sys.executable, "-m", "dist_eval.compare", *map(str, folders[:2]), "--json"]
    metric = ["--metric", "sample_metrics:talks"]
    paths = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([*command, *metric], capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["differences"]["talks"]["value"] == 0
    assert "so many labels" in done.stderr


def test_a_reader_that_has_read_enough_ends_it_quietly(folders: list[Path]) -> None:
    command = [sys.executable, "-u", "-m", "dist_eval.compare", *map(str, folders[:2])]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout and running.stderr
    running.stdout.close()
    errors = running.stderr.read()
    running.stderr.close()
    assert running.wait() == 0
    assert errors == ""
