"""Clients and servers with Petals 2.2 beside those of today: what they compute together, and what they refuse.

uv makes the environment of launch/petals-2.2, in which servers, and clients with Petals' own classes of models, run.
In the first tier tests/api has such clients, and a run of today on such servers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import TIMEOUT, ForkedSwarm, Launcher, results_of, run_here
from forkserver import fork_server
from tiny_models import DECODERS, LAYERS, random_checkpoint, save_tiny_models

from dist_eval import demo
from dist_eval.base_model.config import read_base_config
from dist_eval.errors import EvaluationError
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.classifier import Classifier, load_locally, load_swarm_backbone, with_tuned_head
from dist_eval.swarm.petals_version import ANNOUNCED

ROOT, WORKERS = Path(__file__).parents[2], Path(__file__).parents[1] / "workers"
sys.path.insert(0, str(WORKERS))
from petals_models_worker import texts  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed"),
]

RELEASE, TODAY = "2.2.0.post1", ANNOUNCED
SERVED, NEWER = ("grouped", "bloom", "falcon"), ("llama31", "mixtral", "qwen3")
_OURS, _OR_MAIN = "needs servers with `dist-eval swarm`.", "needs servers with `dist-eval swarm` or Petals main"
_NO_CLASSES = {
    "llama31": "is not read by transformers 4.34.1",
    "mixtral": "Petals 2.2 has no classes for",
    "qwen3": "Petals 2.2 has no classes for",
}
REFUSED: dict[tuple[str, str], dict[str, str]] = {
    (TODAY, TODAY): {},
    (TODAY, RELEASE): {"llama31": _OR_MAIN, "mixtral": _OR_MAIN, "qwen3": _OURS},
    (RELEASE, RELEASE): _NO_CLASSES,
    (RELEASE, TODAY): _NO_CLASSES,
}
"""By version of the client and of the servers, which models are refused with which words; all others are computed."""


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter of the environment with Petals 2.2."""
    command = ["uv", "run", "-q", "--project", str(ROOT / "launch" / "petals-2.2"), "--group", "test"]
    command += ["python", "-c", "import sys; print(sys.executable)"]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def run(python: str, *command: str) -> str:
    """Runs a program in an interpreter that has everything imported; returns what it prints."""
    server = fork_server(python)
    environment = {**os.environ, **server.environment}
    done = subprocess.run([server.command, *command], env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def models(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of random models: those that Petals 2.2 knows are saved by its transformers."""
    folder = tmp_path_factory.mktemp("models")
    run(python, str(ROOT / "tests" / "tiny_models.py"), str(folder), *SERVED)
    save_tiny_models(folder, *NEWER)
    return folder


class Servers(ExitStack):
    """A swarm for each of several models, all in one DHT."""

    def __init__(self) -> None:
        super().__init__()
        self._swarms: list[ForkedSwarm] = []

    @property
    def peers(self) -> list[str]:
        return self._swarms[0].initial_peers if self._swarms else []

    def start(self, python: str, model: Path, name: str, blocks: tuple[int, int] = (0, LAYERS)) -> None:
        """Starts a server in an interpreter."""
        options: dict[str, Any] = {"num_blocks": LAYERS, "spans": [blocks], "threads": 1, "initial_peers": self.peers}
        swarm = ForkedSwarm(str(model), dht_prefix=name, **options)
        swarm.python = python
        self._swarms.append(self.enter_context(swarm))

    def join(self) -> Any:
        """Waits for the servers; returns a node of the DHT."""
        from dist_eval.swarm.client import join_swarm, leave_swarm
        from dist_eval.swarm.coverage import wait_until_covered

        names = [swarm.dht_prefix for swarm in self._swarms]
        dht = join_swarm(self.peers, TIMEOUT)
        self.callback(leave_swarm, dht)
        for swarm in self._swarms:
            count = names.count(swarm.dht_prefix)
            wait_until_covered(dht, swarm.dht_prefix, LAYERS, TIMEOUT, servers=count, check=swarm.require_alive)
        return dht

    def computed(self, dht: Any, model: Path) -> dict[str, Any] | str:
        """Computes a model on the swarm of its name, or says why not."""
        from dist_eval.swarm.coverage import wait_until_covered

        name = model.name
        try:
            wait_until_covered(dht, name, LAYERS, 1, config=read_base_config(str(model)))
        except EvaluationError as error:
            return str(error)
        options: dict[str, Any] = {"dht_prefix": name, "request_timeout": TIMEOUT, "max_retries": 2}
        backbone = load_swarm_backbone(str(model), dht, **options)
        classifier = with_tuned_head(backbone, str(model), checkpoint_for(name))
        self.callback(classifier.close)
        return computed(classifier)


def checkpoint_for(name: str) -> TunedCheckpoint:
    return random_checkpoint("deep_ptune", model_type=DECODERS[name][0])


def computed(classifier: Classifier) -> dict[str, Any]:
    """Computes with today's classifier what `petals_models_worker` does with Petals' own."""
    ids, lengths, labels = texts()
    leaves = {part: getattr(classifier.tuned, part).requires_grad_() for part in ("prompts", "deep_prompts")}
    scores = Classifier(classifier.backbone, replace(classifier.tuned, **leaves)).scores(ids, lengths)
    gradients = torch.autograd.grad(scores.square().sum(), list(leaves.values()))
    return {
        "loss": float(torch.nn.functional.cross_entropy(scores.detach(), labels)),
        "logits": scores.tolist(),
        "gradients": torch.cat([part.flatten() for part in gradients]).tolist(),
    }


@pytest.fixture(scope="module")
def local(models: Path) -> dict[str, dict[str, Any]]:
    """What today's local models compute."""
    names = (*SERVED, *NEWER)
    return {name: computed(load_locally(str(models / name), checkpoint_for(name))) for name in names}


@pytest.fixture(scope="module")
def release(python: str, models: Path, swarm_client: Any) -> Iterator[Servers]:
    """Servers with Petals 2.2, which announce another model under the names of those that they do not know."""
    with Servers() as servers:
        for name in (*SERVED, *NEWER):
            servers.start(python, models / (name if name in SERVED else "grouped"), name)
        yield servers


@pytest.fixture(scope="module")
def answers(
    python: str, models: Path, swarm_client: Any, request: pytest.FixtureRequest
) -> dict[tuple[str, str], dict[str, Any]]:
    """What each combination of client and servers computes, or says instead, by model."""
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def ask(version: str, servers: Servers) -> None:
        dht, worker = servers.join(), str(WORKERS / "petals_models_worker.py")
        found[TODAY, version] = {name: servers.computed(dht, models / name) for name in (*SERVED, *NEWER)}
        found[RELEASE, version] = json.loads(run(python, worker, str(models), *servers.peers))

    with Servers() as today:
        for name in (*SERVED, *NEWER):
            today.start(sys.executable, models / name, name)
        ask(TODAY, today)
    ask(RELEASE, request.getfixturevalue("release"))  # only now: together they would take 6 GiB
    return found


def assert_equal(answer: Any, reference: dict[str, Any]) -> float:
    """Returns the largest difference of a logit."""
    assert isinstance(answer, dict), answer
    assert answer["loss"] == pytest.approx(reference["loss"], rel=1e-5)
    np.testing.assert_allclose(answer["logits"], reference["logits"], rtol=1e-5, atol=1e-5)
    scale = np.abs(reference["gradients"]).max()
    np.testing.assert_allclose(answer["gradients"], reference["gradients"], rtol=0, atol=1e-4 * scale)
    return float(np.abs(np.subtract(answer["logits"], reference["logits"])).max())


@pytest.mark.parametrize(("client", "servers"), REFUSED)
def test_every_model_is_computed_right_or_refused(
    client: str, servers: str, answers: dict[tuple[str, str], dict[str, Any]], local: dict[str, Any]
) -> None:
    refused, differences = REFUSED[client, servers], {}
    for name, answer in answers[client, servers].items():
        if name in refused:
            assert isinstance(answer, str) and refused[name] in answer, (name, answer)
            assert "\n" not in answer
        else:
            differences[name] = assert_equal(answer, local[name])
    assert {*differences, *refused} == {*SERVED, *NEWER}
    print("logits up to", max(np.abs(local[name]["logits"]).max() for name in differences))
    print(f"client {client}, servers {servers}:", {name: f"{value:.1e}" for name, value in differences.items()})


def test_servers_that_compute_something_else_are_not_used_beside_those_that_do_not(
    models: Path, release: Servers, local: dict[str, Any]
) -> None:
    release.start(sys.executable, models / "llama31", "llama31")
    assert_equal(release.computed(release.join(), models / "llama31"), local["llama31"])


@pytest.fixture
def mixed_swarm(python: str, swarm_client: Any) -> Iterator[list[str]]:
    """The demo's base model on two servers: one has Petals 2.2, and the other one is of today."""
    with Servers() as servers:
        servers.start(python, demo.BASE_MODEL, "base", (0, 2))
        servers.start(sys.executable, demo.BASE_MODEL, "base", (2, LAYERS))
        servers.join()
        yield servers.peers


def test_a_run_on_servers_of_both_versions_is_exact(mixed_swarm: list[str], launcher: Launcher, tmp_path: Path) -> None:
    command = ["-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT)]
    command += ["--dataset", str(demo.TEST_DATA)]
    on_swarm = ["--dht-prefix", "base", "--initial-peers", *mixed_swarm]
    folders = {name: tmp_path / name for name in ("local", "one rank", "two ranks")}
    assert run_here(*command, "--backend", "local", "--output", str(folders["local"])) == 0
    assert run_here(*command, *on_swarm, "--output", str(folders["one rank"])) == 0
    done = launcher.run(*command, *on_swarm, "--output", str(folders["two ranks"]), ranks=2)
    assert done.returncode == 0, done.stderr
    for name in ("one rank", "two ranks"):
        results = results_of(folders[name])
        assert results["coverage"] == {"expected": 596, "seen": 596, "duplicates": 0, "missing": 0, "failed": 0}
        assert [server["version"] for server in results["swarm"]["servers"]] == [RELEASE, TODAY]
    here, one, two = (folder / "predictions.parquet" for folder in folders.values())
    assert one.read_bytes() == two.read_bytes()
    expected, found = pq.read_table(here), pq.read_table(two)
    assert found["prediction"].equals(expected["prediction"])
    for column in ("loss", "probabilities"):
        ours, theirs = (np.array(table[column].to_pylist()) for table in (found, expected))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
