"""The programs and commands of all READMEs, run as they stand there; the links of all pages."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Launcher, results_of, run_here
from forkserver import fork_server

from dist_eval import evaluate
from dist_eval.metrics.metric_loading import load_text_metrics

ROOT = Path(__file__).parents[1]
FILES = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split()
TEXTS = {file: (ROOT / file).read_text(encoding="utf-8") for file in FILES if (ROOT / file).exists()}


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXTS[file], re.MULTILINE | re.DOTALL)


EXAMPLES = {(file, number): code for file in TEXTS for number, code in enumerate(blocks(file, "python"))}
"""All Python code, by its file and its place among the examples there."""

PROGRAMS = {place: code for place, code in EXAMPLES.items() if "PrivateSwarm(" in code}
"""Programs that need nothing but this repository: they start a swarm of their own."""

LOOP, METRICS, READERS = ("README.md", 0), ("dist_eval/metrics/README.md", 0), ("dist_eval/report/README.md", 0)
FROM_PYTHON, OF_TEXTS = ("dist_eval/api/README.md", 1), ("dist_eval/model/README.md", 0)
"""Examples that a test below gives what they need."""


def documented(code: str) -> list[str]:
    """Returns what a program prints according to the comments behind its calls of print."""
    return re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)


def test_every_example_is_tested() -> None:
    assert {"README.md", "dist_eval/api/README.md", "launch/README.md"} <= {*TEXTS}
    assert len(PROGRAMS) >= 2
    assert {*EXAMPLES} == {*PROGRAMS, LOOP, METRICS, READERS, FROM_PYTHON, OF_TEXTS}
    assert sum(text.count("```py") for text in TEXTS.values()) == len(EXAMPLES), "one is fenced in another way"


@pytest.mark.parametrize("place", PROGRAMS, ids=lambda place: f"{Path(place[0]).parent.name}-{place[1]}")
def test_a_program_prints_what_the_readme_says(place: tuple[str, int], launcher: Launcher) -> None:
    program = PROGRAMS[place]
    expected = documented(program)
    assert expected, "it prints nothing that could be compared"
    first, *_ = PROGRAMS  # in a real interpreter, whose imports must not print anything either
    if place == first:  # only its servers are forked: what they print goes to files
        program = (
            f"from dist_eval.petals.server import private\nprivate.PYTHON = [{fork_server().command!r}]\n{program}"
        )
    done = launcher.run("-c", program, preloaded=place != first)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected
    assert done.stderr == ""
    assert not launcher.leftovers()


def test_the_training_loop_evaluates_after_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    class Classifier(torch.nn.Linear):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            logits = super().forward(x)
            loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
            return SimpleNamespace(loss=loss, logits=logits)

    torch.manual_seed(0)
    model = Classifier(2, 2)
    x = torch.randn(40, 2)
    batches = [{"x": part, "labels": (part[:, 0] > 0).long()} for part in x.split(8)]
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)

    def train_one_epoch(model: torch.nn.Module) -> None:
        for batch in batches:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()

    exec(EXAMPLES[LOOP], {"train_one_epoch": train_one_epoch, "eval_dataloader": batches, "model": model})
    assert model.training
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    final = evaluate(model, batches)
    assert final["accuracy"] > 0.9
    assert lines[1] == f"epoch 1: accuracy {final['accuracy']:.4f}, macro F1 {final['f1_macro']:.4f}"


def test_the_example_of_own_metrics_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = blocks(METRICS[0], "bash")[0]
    (tmp_path / "my_metrics.py").write_text(EXAMPLES[METRICS])
    (tmp_path / "dist_eval").symlink_to(ROOT / "dist_eval")
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:6] == ["uv", "run", "dist-eval", "run", "--nproc-per-node", "2"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert run_here("-m", "dist_eval", *words[6:]) == 0
    results = results_of(tmp_path / "runs" / "metrics")
    assert results["custom_metrics"] == ["worst_recall", "top_two"]
    assert results["metrics"]["worst_recall"] == min(row["recall"] for row in results["per_class"])
    assert results["metrics"]["accuracy"] < results["metrics"]["top_two"] <= 1
    assert re.search(rf"^top_two +{results['metrics']['top_two']:.4f} ", capfd.readouterr().out, re.MULTILINE)


@pytest.mark.usefixtures("preloaded_ranks")
def test_a_run_from_a_program_and_what_reads_its_predictions_print_what_the_readmes_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLES[FROM_PYTHON], {})
    Path("runs/digits").rename("runs/demo")
    exec(EXAMPLES[READERS], {})
    run, readers = (documented(EXAMPLES[place]) for place in (FROM_PYTHON, READERS))
    assert run and readers and capfd.readouterr().out.splitlines() == run + readers


def test_the_example_of_a_metric_of_texts_gives_each_text_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(EXAMPLES[OF_TEXTS])
    monkeypatch.syspath_prepend(tmp_path)
    *_, metric = load_text_metrics(["mine:contains"])
    assert [float(metric.measure(text, ["x", "y"])) for text in ("x-ray", "no")] == [1.0, 0.0]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Returns what GitHub lets links name: the headings in lower case, without punctuation, with dashes for spaces."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", TEXTS)
def test_links_lead_somewhere(file: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(TEXTS[file])):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / file).parent / name).resolve() if name else ROOT / file
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), target
