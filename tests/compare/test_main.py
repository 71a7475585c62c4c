"""The command line of comparing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dist_eval.compare.__main__ import main


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name at least two runs"),
        (["SECOND", "--metric", "f1"], "--metric f1: no such metric; there are accuracy, "),
        (["SECOND", "--confidence", "95"], "--confidence must be more than 0 and less than 1"),
        (["SECOND", "--resamples", "10"], "--resamples must be at least 99, not 10"),
        (["SECOND", "--metric", "sample_metrics:cost"], "sample_metrics:cost: sample_metrics has no attribute 'cost'"),
        (["SECOND", "--metric", "sample_metrics:accuracy"], "the name 'accuracy' is already in use"),
    ],
)
def test_wrong_options_are_said(
    folders: list[Path], capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    second = [str(folders[1]) if option == "SECOND" else option for option in options]
    assert main([str(folders[0]), *second]) == 2
    assert words in capsys.readouterr().err


def test_output_of_custom_metrics_is_not_in_the_json(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*map(str, folders[:2]), "--json", "--metric", "sample_metrics:talks"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["runs"][0]["differences"]["talks"]["value"] == 0
    assert "so many labels" in said.err
