"""The options of a tuning: on the command line, in YAML, and their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dist_eval.arguments.commandline import build_parser, parse_args
from dist_eval.errors import ConfigError
from dist_eval.options.tuning import COMMAND, TuningConfig

LOCAL: dict[str, Any] = {"model": "base", "dataset": "data/train.csv", "backend": "local"}


def command_line(**options: Any) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in {**LOCAL, **options}.items()]


def test_command_line_yaml_and_python_give_equal_configurations(tmp_path: Path) -> None:
    options = {"tuning_mode": "ptune", "learning_rate": 0.5, "epochs": 7, "eval_dataset": "v.csv", "save_every": 3}
    path = tmp_path / "run.yaml"
    path.write_text("\n".join(f"{name.replace('_', '-')}: {value}" for name, value in {**LOCAL, **options}.items()))
    expected = TuningConfig(**LOCAL, **options)
    assert parse_args(["--config", str(path)], COMMAND) == expected
    assert parse_args(command_line(**options), COMMAND) == expected
    assert parse_args(["--config", str(path), "--epochs", "2"], COMMAND).epochs == 2


def test_several_trackers_can_be_named(tmp_path: Path) -> None:
    both = ["wandb", "mlflow"]
    assert parse_args([*command_line(), "--tracker", *both], COMMAND).tracker == both
    path = tmp_path / "run.yaml"
    path.write_text("tracker: [wandb, mlflow]\n")
    assert parse_args(["--config", str(path), *command_line()], COMMAND).tracker == both
    path.write_text("tracker: [wandb, paper]\n")
    with pytest.raises(ConfigError, match="tracker must be one of tensorboard, wandb, mlflow"):
        parse_args(["--config", str(path), *command_line()], COMMAND)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": ""}, "--model is missing: the base model to tune."),
        ({"dataset": ""}, "--dataset is missing: the data to learn from."),
        ({"best_metric": "beauty"}, "--best-metric must be one of accuracy"),
        ({"labels": "vectors"}, "--labels vectors: tuning supports only texts with one class each"),
        ({"eval_subset": "x"}, "--eval-subset needs --eval-dataset or --eval-split"),
        ({"backend": "petals"}, "You did not name a swarm"),
        ({"checkpoint": "x"}, "There is no option --checkpoint."),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_args(command_line(**options), COMMAND)
    assert words in str(caught.value)


def test_the_folder_is_named_after_the_data_and_the_mode() -> None:
    assert TuningConfig(**LOCAL).output_folder == Path("runs/train-deep_ptune")
    assert TuningConfig(**LOCAL, output="here").output_folder == Path("here")


def test_data_to_evaluate_on_are_another_file_or_another_split() -> None:
    assert TuningConfig(**LOCAL).evaluation_data is None
    assert TuningConfig(**LOCAL, eval_dataset="v.csv").evaluation_data == {
        "dataset": "v.csv",
        "subset": None,
        "split": None,
    }
    assert TuningConfig(**LOCAL, subset="en", eval_split="test").evaluation_data == {
        "dataset": LOCAL["dataset"],
        "subset": "en",
        "split": "test",
    }


def test_the_help_names_every_option_under_its_heading() -> None:
    text = build_parser(COMMAND).format_help()
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings[1:9] == [*("model:", "data:", "tuning:", "learning:", "swarm:", "output:", "speed:", "failures:")]
    with pytest.raises(ConfigError, match="needs a base model, labelled data, and a swarm"):
        parse_args([], COMMAND)
