"""Evaluation runs as users start them: exact on any number of ranks, with clear errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from conftest import Launcher, SwarmClient, assert_tracked, results_of, run_here, wait_for
from samples import DEAD_PEER, digits
from tiny_models import edited_tensors

from dist_eval import demo
from dist_eval.__main__ import run
from dist_eval.errors import SwarmError
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.options.config import EvaluationConfig
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server.private import PrivateSwarm

WORKER = str(Path(__file__).parents[1] / "workers" / "world_size_worker.py")
RANKS = 3
SIZES = (1, 3, 4, 97)
"""Numbers of examples: fewer than ranks, as many, one more, many."""


@pytest.fixture(scope="module")
def by_world_size(demo_swarm: PrivateSwarm, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Folders with the results of one rank and of several."""
    folders = {ranks: tmp_path_factory.mktemp(f"ranks-{ranks}") for ranks in (1, RANKS)}
    for ranks, folder in folders.items():
        launcher = Launcher(Path(tempfile.mkdtemp(prefix="w-")))
        arguments = (str(folder), ",".join(demo_swarm.initial_peers), *map(str, SIZES))
        result = launcher.run(WORKER, *arguments, ranks=ranks)
        shutil.rmtree(launcher.temporary, ignore_errors=True)
        assert result.returncode == 0, result.stderr
    return folders


@pytest.mark.parametrize("n", SIZES)
def test_every_example_counts_once_and_results_do_not_depend_on_the_number_of_ranks(
    n: int, by_world_size: dict[int, Path], demo_swarm: PrivateSwarm
) -> None:
    alone, together = (by_world_size[ranks] / str(n) for ranks in (1, RANKS))
    results = results_of(together)
    samples = [work["samples"] for work in results["ranks"]]
    assert results["coverage"] == {"expected": n, "seen": n, "duplicates": 0, "missing": 0, "failed": 0}
    assert sum(samples) == n == sum(map(sum, results["confusion_matrix"]["matrix"]))
    assert len(samples) == RANKS
    if n == max(SIZES):
        assert results["plan"]["batches"] > 2 * RANKS
        assert min(samples) > 0
    assert (together / "predictions.parquet").read_bytes() == (alone / "predictions.parquet").read_bytes()
    for section in ("metrics", "undefined", "intervals", "per_class", "confusion_matrix"):
        assert json.dumps(results[section]) == json.dumps(results_of(alone)[section])
    assert not any(peer in (together / "results.json").read_text() for peer in demo_swarm.initial_peers)


def test_the_demo_runs_from_nothing_to_a_result(launcher: Launcher, tmp_path: Path) -> None:
    output = tmp_path / "demo"
    tracked = ("--tracker", "tensorboard")
    result = launcher.run("-m", "dist_eval", "--demo", "--output", str(output), *tracked, ranks=2)
    assert result.returncode == 0, result.stderr
    results = results_of(output)
    assert results["status"] == "complete"
    assert results["metrics"]["accuracy"] >= 0.90
    assert results["majority_share"] < 0.12
    assert re.search(rf"^accuracy +{results['metrics']['accuracy']:.4f} ", result.stdout, re.MULTILINE)
    assert f"most frequent class would give an accuracy of {results['majority_share']:.4f}" in result.stdout
    n = results["data"]["examples"]
    assert results["coverage"] == {"expected": n, "seen": n, "duplicates": 0, "missing": 0, "failed": 0}
    assert [work["samples"] > 0 for work in results["ranks"]] == [True, True]
    assert sum(work["samples"] for work in results["ranks"]) == n
    assert [(s["start"], s["end"], s["state"]) for s in results["swarm"]["servers"]] == [
        (0, 2, "online"),
        (2, 4, "online"),
    ]
    table = pandas.read_parquet(output / "predictions.parquet")
    assert table["index"].tolist() == list(range(n))
    assert (table["label"] == table["prediction"]).mean() == pytest.approx(results["metrics"]["accuracy"])
    assert (output / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in result.stdout + result.stderr
    assert f"evaluating: {n} of {n} examples" in result.stderr
    assert not launcher.leftovers()
    options = ["--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT), "--dataset", str(demo.TEST_DATA)]
    assert run_here("-m", "dist_eval", *options, "--backend", "local", "--output", str(tmp_path / "alone")) == 0
    alone = pandas.read_parquet(tmp_path / "alone" / "predictions.parquet")  # sessions differ in the last digits
    assert alone.drop(columns=["loss", "probabilities"]).equals(table.drop(columns=["loss", "probabilities"]))
    np.testing.assert_allclose(np.stack(table["probabilities"]), np.stack(alone["probabilities"]), atol=1e-5)
    for section in ("undefined", "per_class", "confusion_matrix", "coverage", "data"):
        assert json.dumps(results[section]) == json.dumps(results_of(tmp_path / "alone")[section])
    logged = assert_tracked(output, "accuracy")
    assert logged["progress"] == pytest.approx(1)
    assert logged["examples_per_second"] > 0
    for name, value in (("", results["metrics"]["accuracy"]), ("/low", results["intervals"]["accuracy"]["low"])):
        assert logged[f"accuracy{name}"] == pytest.approx(value)


@pytest.mark.parametrize("victim", ["agent", pytest.param("rank 0", marks=pytest.mark.slow)])
def test_a_run_killed_with_sigkill_leaves_nothing_behind(victim: str, launcher: Launcher, tmp_path: Path) -> None:
    data = digits(tmp_path / "long.csv", times=40)  # minutes of work
    options = ["--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT), "--dataset", str(data)]
    output = tmp_path / "out"
    options += ["--swarm", "embedded", "--servers", "1", "--output", str(output), "--stop-grace", "2"]
    agent = launcher.start("-m", "dist_eval", *options, ranks=2)
    assert agent.stderr
    for line in agent.stderr:
        if "evaluating:" in line:
            break
    else:
        pytest.fail(f"it never began: {results_of(tmp_path / 'out')}")
    ours = launcher.processes()
    assert sum("p2pd" in command for command in ours.values()) >= 3  # a server, two ranks
    os.kill(agent.pid if victim == "agent" else launcher.rank(0), signal.SIGKILL)
    assert wait_for(lambda: not launcher.processes()), launcher.processes()
    agent.communicate()
    assert not launcher.leftovers()
    assert not [name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in ours)]


def config_for(tmp_path: Path, **changes: Any) -> EvaluationConfig:
    options: dict[str, Any] = {
        "model": str(demo.BASE_MODEL),
        "checkpoint": str(demo.CHECKPOINT),
        "dataset": str(demo.TEST_DATA),
        "initial_peers": [DEAD_PEER],
        "swarm_timeout": 3.0,
        "output": str(tmp_path / "out"),
        "report": "none",
    }
    return EvaluationConfig(**{**options, **changes})


def csv_file(tmp_path: Path, *rows: str) -> str:
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return str(path)


def fails_with(config: EvaluationConfig, capfd: pytest.CaptureFixture[str], *words: str) -> None:
    """The run ends with status 1 and says the same, once, to the person and to results.json."""
    folder = config.output_folder.parent / "own"
    folder.mkdir(exist_ok=True)
    assert run(config, folder) == 1
    printed = capfd.readouterr()
    results = results_of(config.output_folder)
    assert results["status"] == "failed"
    assert "metrics" not in results
    message = results["error"]["message"]
    for word in words:
        assert word in message, message
    assert printed.err.count(message) == 1
    assert "Traceback" not in printed.err + printed.out


def copied_checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo.CHECKPOINT, tmp_path / "tuned"))


def test_a_checkpoint_without_a_head(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = copied_checkpoint(tmp_path)
    with edited_tensors(folder) as tensors:
        del tensors["score.weight"]
    fails_with(config_for(tmp_path, checkpoint=str(folder)), capfd, str(folder), "no classification head")


def test_peers_that_do_not_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = config_for(tmp_path)
    assert run(config, tmp_path) == 1
    printed = capfd.readouterr().err
    assert "None of the swarm's peers answered within 3 s" in printed
    assert DEAD_PEER in printed
    results = results_of(config.output_folder)
    assert results["status"] == "failed"
    assert "peers answered within 3 s" in results["error"]["message"]
    assert DEAD_PEER not in json.dumps(results)


def test_a_text_longer_than_the_limit_is_cut_counted_and_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = csv_file(tmp_path, "123,1", "12345678,1", "1234567,2")
    assert run(config_for(tmp_path, dataset=dataset, max_length=5, initial_peers=[], backend="local"), tmp_path) == 0
    data = results_of(tmp_path / "out")["data"]
    assert (data["truncated"], data["longest"], data["max_length"]) == (2, 9, 5)
    assert "2 texts cut to 5 tokens" in capfd.readouterr().out


def test_an_embedded_swarm_is_refused_on_several_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    config = config_for(tmp_path, initial_peers=[], swarm="embedded")
    fails_with(config, capfd, "--swarm embedded", "--initial-peers")


def test_of_several_ranks_one_reports_and_the_run_is_marked_as_failed(launcher: Launcher, tmp_path: Path) -> None:
    options = ["--model", str(demo.BASE_MODEL), "--checkpoint", "/nowhere", "--dataset", csv_file(tmp_path, "123,1")]
    result = launcher.run(
        "-m", "dist_eval", *options, "--initial-peers", DEAD_PEER, "--output", str(tmp_path / "out"), ranks=3
    )
    assert result.returncode == 1
    results, words = results_of(tmp_path / "out"), "The checkpoint folder /nowhere does not exist"
    assert results["status"] == "failed"
    assert words in results["error"]["message"]
    ours = re.split("torch/distributed|Traceback", result.stderr)[0]  # before torchrun's own report
    assert ours.count(words) == 1
    assert f'File "{Path(demo.__file__).parents[1]}' not in result.stderr
    assert not launcher.leftovers()


def test_ranks_with_different_base_models_are_told_apart(launcher: Launcher, tmp_path: Path) -> None:
    for rank, factor in enumerate((1.0, 1.001)):
        shutil.copytree(demo.BASE_MODEL, folder := tmp_path / f"model-{rank}")
        with edited_tensors(folder) as tensors:
            tensors.update({name: tensor * factor for name, tensor in tensors.items() if ".layers." in name})
    options = ["--dataset", csv_file(tmp_path, "123,1"), "--checkpoint", str(demo.CHECKPOINT), "--backend", "local"]
    each_its_own = f'exec "$PYTHON_EXEC" -m dist_eval --model {tmp_path}/model-$RANK "$@"'
    output = tmp_path / "out"
    result = launcher.run("--no-python", "sh", "-c", each_its_own, "-", *options, "--output", str(output), ranks=2)
    assert result.returncode == 1
    assert "The base model differs between ranks" in results_of(output)["error"]["message"]


def test_the_public_swarm_is_joined_only_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swarm_client: SwarmClient
) -> None:
    from dist_eval.petals.client import client

    asked: list[list[str]] = []

    def join_swarm(peers: list[str], *_: Any, **__: Any) -> None:
        asked.append(list(peers))
        raise SwarmError("not joined in a test")

    monkeypatch.setattr(client, "join_swarm", join_swarm)
    assert run(config_for(tmp_path, initial_peers=[], swarm="public"), tmp_path) == 1
    assert run(config_for(tmp_path, output=str(tmp_path / "other")), tmp_path) == 1
    assert asked == [client.public_peers(), [DEAD_PEER]]
    assert len(client.public_peers()) > 1


def test_requests_stay_within_what_servers_accept(tmp_path: Path) -> None:
    config = config_for(tmp_path, server_max_tokens=256, max_length=100)
    base = BaseModelSpec.read(config, TunedCheckpoint.load(demo.CHECKPOINT))
    assert base.token_budget == 256
    assert BaseModelSpec.read(config_for(tmp_path), TunedCheckpoint.load(demo.CHECKPOINT)).token_budget == 1024


def test_a_checkpoint_and_a_base_without_a_tokenizer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folders = {}
    for name, source in (("base", demo.BASE_MODEL), ("tuned", demo.CHECKPOINT)):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(source / file, folders[name] / file)
    config = config_for(tmp_path, model=str(folders["base"]), checkpoint=str(folders["tuned"]))
    fails_with(config, capfd, "tokenizer", str(folders["base"]), str(folders["tuned"]))


def test_a_server_of_the_embedded_swarm_that_cannot_start_is_named(
    tmp_path: Path, launcher: Launcher, tiny_models: dict[str, Path], make_tuned: Any
) -> None:
    broken = shutil.copytree(tiny_models["llama"], tmp_path / "broken")
    with edited_tensors(broken) as tensors:
        for name in [name for name in tensors if ".layers.3." in name]:
            del tensors[name]
    make_tuned(None).save(tmp_path / "tuned")
    for file in demo.BASE_MODEL.glob("*token*"):
        shutil.copy(file, broken / file.name)
    result = launcher.run(
        *("-m", "dist_eval", "--model", str(broken), "--checkpoint", str(tmp_path / "tuned")),
        *("--dataset", csv_file(tmp_path, "123,class-1"), "--swarm", "embedded", "--output", str(tmp_path / "out")),
    )
    assert result.returncode == 1
    assert "Server 1 of the private swarm (blocks 2:4" in results_of(tmp_path / "out")["error"]["message"]
    assert not launcher.leftovers()


def test_a_complete_run_is_not_run_twice_and_not_replaced_by_accident(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"initial_peers": [], "backend": "local"}
    config = config_for(tmp_path, dataset=csv_file(tmp_path, "123,1", "3,2"), **options)
    assert run(config, tmp_path) == 0
    before = (tmp_path / "out" / "results.json").read_bytes()
    capfd.readouterr()
    assert run(config, tmp_path) == 0
    assert "Nothing was sent; --overwrite runs it again" in capfd.readouterr().out
    csv_file(tmp_path, "123,1", "3,3")
    assert run(config, tmp_path) == 1
    printed = capfd.readouterr().err
    assert "it differs in the dataset." in printed
    assert "--overwrite" in printed
    assert (tmp_path / "out" / "results.json").read_bytes() == before


@pytest.fixture
def spoiled(tmp_path: Path, tiny_models: dict[str, Path], make_tuned: Any) -> tuple[EvaluationConfig, Path]:
    """A run on a base model that has no finite answer to texts with a 7, and where its weights are."""
    from transformers import AutoTokenizer

    base = shutil.copytree(tiny_models["llama"], tmp_path / "base")
    for file in demo.BASE_MODEL.glob("*token*"):
        shutil.copy(file, base / file.name)
    [seven] = AutoTokenizer.from_pretrained(base).convert_tokens_to_ids(["7"])
    shutil.copy(base / "model.safetensors", tmp_path / "good.safetensors")
    with edited_tensors(base) as tensors:
        tensors["model.embed_tokens.weight"][seven] = torch.inf
    make_tuned(None).save(tmp_path / "tuned")
    dataset = csv_file(tmp_path, "123,class-1", "12,class-0", "172,class-2", "33,class-0", "7,class-1", "21,class-2")
    options = {"model": str(base), "checkpoint": str(tmp_path / "tuned"), "dataset": dataset}
    config = config_for(tmp_path, **options, initial_peers=[], backend="local", on_error="skip", max_failed=2)
    return config, base / "model.safetensors"


def test_failed_examples_are_listed_kept_out_of_every_figure_and_tried_again(
    tmp_path: Path, spoiled: tuple[EvaluationConfig, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    config, weights = spoiled
    assert run(config, tmp_path) == 0
    results = results_of(config.output_folder)
    assert results["coverage"] == {"expected": 6, "seen": 4, "duplicates": 0, "missing": 2, "failed": 2}
    assert [failure["index"] for failure in results["failures"]] == [2, 4]
    assert "rows 2): The model answered with values that are not finite" in results["failures"][0]["reason"]
    assert sum(map(sum, results["confusion_matrix"]["matrix"])) == 4
    assert pandas.read_parquet(config.output_folder / "predictions.parquet")["index"].tolist() == [0, 1, 3, 5]
    assert "4 of 6 examples, each exactly once; 2 failed" in capfd.readouterr().out

    shutil.copy(tmp_path / "good.safetensors", weights)
    assert run(config, tmp_path) == 0
    again = results_of(config.output_folder)
    assert again["coverage"] == {"expected": 6, "seen": 6, "duplicates": 0, "missing": 0, "failed": 0}
    assert again["failures"] == []
    assert pandas.read_parquet(config.output_folder / "predictions.parquet")["index"].tolist() == list(range(6))


def test_more_failed_examples_than_allowed_end_the_run(
    tmp_path: Path, spoiled: tuple[EvaluationConfig, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    config, _ = spoiled
    config.max_failed = 1
    fails_with(config, capfd, "2 examples failed, more than --max-failed 1 allows", "not finite")


def test_by_default_the_first_failed_example_ends_the_run(
    tmp_path: Path, spoiled: tuple[EvaluationConfig, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    config, _ = spoiled
    config.on_error = "stop"
    fails_with(config, capfd, "data.csv, rows", "not finite for 2 of 6 texts")


def test_options_that_make_no_sense_are_named_once_and_end_with_status_2(launcher: Launcher) -> None:
    result = launcher.run("-m", "dist_eval", "--modle", "x", ranks=2)
    assert result.stderr.count("There is no option --modle. Did you mean --model?") == 1
    assert "exitcode  : 2 " in result.stderr  # torchrun's own is 1
