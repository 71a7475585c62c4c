"""The README's programs and commands, run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from conftest import Launcher, results_of, run_here

from dist_eval import demo

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README.split("## In your own program\n")[1], re.MULTILINE | re.DOTALL)
"""What they print stands behind them."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.rsplit("import ", 1)[-1].splitlines()[0])
def test_a_program_prints_what_the_readme_says(program: str, launcher: Launcher) -> None:
    expected = re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert expected, "it prints nothing that could be compared"
    done = launcher.run("-c", program, preloaded=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected
    assert done.stderr == ""
    assert not launcher.leftovers()


def test_the_example_of_own_metrics_runs_as_written(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = README.split("### Metrics\n")[1].split("\n### ")[0]
    module, command = (re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "bash"))
    assert module and command
    (tmp_path / "my_metrics.py").write_text(module[1])
    (tmp_path / "dist_eval").symlink_to(ROOT / "dist_eval")
    words = shlex.split(command[1].replace("\\\n", " "))
    assert words[:6] == ["uv", "run", "dist-eval", "run", "--nproc-per-node", "2"]
    monkeypatch.chdir(tmp_path)
    process = launcher.run("-m", "dist_eval", *words[6:], ranks=2)
    assert process.returncode == 0, process.stderr
    results = results_of(tmp_path / "runs" / "metrics")
    assert results["custom_metrics"] == ["worst_recall", "TopTwo"]
    assert results["metrics"]["worst_recall"] == min(row["recall"] for row in results["per_class"])
    assert results["metrics"]["accuracy"] < results["metrics"]["TopTwo"] <= 1
    assert f"TopTwo                {results['metrics']['TopTwo']:.4f}" in process.stdout


def test_pandas_and_duckdb_read_the_predictions_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    section = README.split("### Looking at results, and keeping them\n")[1].split("\n### ")[0]
    program = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert program
    expected = re.findall(r"\)  # (.*)$", program[1], re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    options = [f"--{name}={value}" for name, value in demo.OPTIONS.items()]
    assert run_here("-m", "dist_eval", *options, "--backend", "local", "--output", "runs/demo") == 0
    capfd.readouterr()
    exec(program[1], {})
    assert capfd.readouterr().out.splitlines() == expected
