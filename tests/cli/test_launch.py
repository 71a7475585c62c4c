"""`dist-eval run`: several ranks from one command, and a last line with the reason of a failure."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import psutil
import pytest
from conftest import TIMEOUT, Launcher, results_of

from dist_eval import demo
from dist_eval.cli.launch import start_ranks
from dist_eval.options.config import EVALUATION

CLI = ("-m", "dist_eval.cli.main")
DEMO = (
    *("--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT), "--dataset", str(demo.TEST_DATA)),
    *("--backend", "local"),
)


def test_one_rank_needs_no_agent() -> None:
    assert start_ranks("dist_eval", EVALUATION, ["--demo"]) == ["--demo"]
    assert start_ranks("dist_eval", EVALUATION, ["--nproc_per_node=1", "--demo"]) == ["--demo"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--demo", "--nproc-per-nod", "2"], "There is no option --nproc-per-nod. Did you mean --nproc-per-node?"),
        (["--demo", "--nproc-per-node"], "--nproc-per-node: expected one argument."),
        (["--demo", "--nproc-per-node", "0"], "--nproc-per-node must be at least 1, auto, cpu or gpu, not 0."),
        (["--demo", "--nproc-per-node", "two"], "--nproc-per-node must be at least 1, auto, cpu or gpu, not two."),
        (["--nproc-per-node", "2"], EVALUATION.nothing_asked),
        ([], EVALUATION.nothing_asked),
    ],
)
def test_wrong_options_are_found_before_a_process_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        start_ranks("dist_eval", EVALUATION, words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == said + "\n"


def own_metric(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> list[str]:
    """Returns options for a metric of one's own, which ranks try on a few examples first."""
    (folder / "own.py").write_text(f"def metric(predictions, labels, probabilities):\n    {code}\n    return 0.5\n")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return ["--nproc-per-node", "2", *DEMO, "--metric", "own:metric", "--output", str(folder / "out")]


def test_ranks_evaluate_together_print_nothing_else_and_cannot_be_reached_from_other_hosts(
    launcher: Launcher, tmp_path: Path
) -> None:
    run = launcher.start(*CLI, "run", "--nproc-per-node=2", *DEMO, "--output", str(tmp_path / "out"), preloaded=True)
    listening: dict[int, set[str]] = {}
    while run.poll() is None:
        for number in launcher.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                for connection in psutil.Process(number).net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        listening.setdefault(number, set()).add(connection.laddr.ip)
        time.sleep(0.05)
    _, err = run.communicate(timeout=TIMEOUT)
    assert run.returncode == 0, err
    assert len(listening) == 3, "torchrun's store, and gloo's port in each rank"
    assert set.union(*listening.values()) == {"127.0.0.1"}
    assert [rank["samples"] > 0 for rank in results_of(tmp_path / "out")["ranks"]] == [True, True]
    assert [line for line in err.splitlines() if "evaluating:" not in line] == []
    assert not [*launcher.leftovers(), *launcher.temporary.glob("torchelastic_*")]


def test_the_last_line_of_a_failed_run_says_why(launcher: Launcher, tmp_path: Path) -> None:
    options = [*DEMO, "--text-column", "sentence", "--output", str(tmp_path / "out")]
    done = launcher.run(*CLI, "run", *options, "--nproc_per_node", "2")
    assert done.returncode == 1
    assert done.stderr == f"dist_eval: {results_of(tmp_path / 'out')['error']['message']}\n"
    assert not launcher.leftovers()


def test_torchruns_own_report_ends_with_the_reason(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run(
        "-m", "dist_eval", *DEMO, "--text-column", "sentence", "--output", str(tmp_path / "out"), ranks=2
    )
    message = results_of(tmp_path / "out")["error"]["message"]
    assert f"traceback : {message}" in done.stderr.splitlines()[-2].strip()


def test_a_rank_that_is_killed_is_named(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os\n    if os.environ['RANK'] == '1': os.kill(os.getpid(), 9)"
    done = launcher.run(*CLI, "run", *own_metric(tmp_path, monkeypatch, code))
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "dist_eval: rank 1 (process" in done.stderr.splitlines()[-1]
    assert done.stderr.endswith("was killed by SIGKILL\n")
