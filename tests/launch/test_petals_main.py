"""Petals main beside the release: what clients and servers of both compute together, and what they refuse.

Main is not on PyPI: this needs a wheel of it in ../shared/wheels, beside the checkout, with which uv builds the
environment of launch/petals-main.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import TIMEOUT, SwarmClient, results_of
from tiny_models import LAYERS, random_checkpoint

from dist_eval import demo
from dist_eval.swarm import private
from dist_eval.swarm.private import PrivateSwarm

ROOT = Path(__file__).parents[2]
WHEELS = ROOT.parent / "shared" / "wheels"
RELEASE, MAIN = "2.2.0.post1", "2.3.0.dev2"
PROGRESS = "((evaluating|comparing).*\n)*"
"""All that a good run prints to stderr."""
WORKER = str(ROOT / "tests" / "workers" / "versions_worker.py")

pytestmark = [
    pytest.mark.skipif(
        not [*WHEELS.glob("petals-*.whl")], reason="there is no wheel of Petals main in ../shared/wheels"
    ),
    pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed"),
    pytest.mark.slow,
]

MODELS = ("llama", "grouped", "llama31", "mixtral", "bloom", "falcon")
_LOCAL_MAIN, _SERVERS_MAIN = "launch/petals-main/README.md", "needs servers with Petals main"
_NO_FALCON, _SERVERS_RELEASE = "its servers fail on every request", "needs servers with the release, Petals 2.2"
REFUSED: dict[tuple[str, str | None], dict[str, str]] = {
    (RELEASE, None): {"llama31": _LOCAL_MAIN, "mixtral": _LOCAL_MAIN},
    (MAIN, None): {"falcon": _NO_FALCON},
    (RELEASE, RELEASE): {"llama31": _SERVERS_MAIN, "mixtral": _LOCAL_MAIN},
    (RELEASE, MAIN): {"mixtral": _LOCAL_MAIN, "falcon": _SERVERS_RELEASE},
    (MAIN, RELEASE): {"llama31": _SERVERS_MAIN, "mixtral": "serves no block", "falcon": _NO_FALCON},
    (MAIN, MAIN): {"falcon": _NO_FALCON},
}
"""By version of the client and of the servers (None: no swarm), which models are refused with which words."""


@pytest.fixture(scope="session")
def main_python(request: pytest.FixtureRequest) -> str:
    """The interpreter of an environment with Petals main, which is kept in pytest's cache."""
    environment = {
        **os.environ,
        "UV_FIND_LINKS": str(WHEELS),
        "UV_PROJECT_ENVIRONMENT": str(request.config.cache.mkdir("petals-main")),  # type: ignore[union-attr]
    }
    project = ["--project", str(ROOT / "launch" / "petals-main"), "--group", "test", "--python", sys.executable]
    command = ["uv", "run", "-q", "--no-sources-package", "petals", *project]
    done = subprocess.run(
        [*command, "python", "-c", "import sys; print(sys.executable)"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def pythons(main_python: str) -> dict[str, str]:
    """The interpreters of both versions."""
    return {RELEASE: sys.executable, MAIN: main_python}


def run(python: str, *command: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([python, *command], env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def models(pythons: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of random models, saved by the release as far as it knows them."""
    folder = tmp_path_factory.mktemp("models")
    program = str(ROOT / "tests" / "tiny_models.py")
    run(pythons[RELEASE], program, str(folder), "llama", "grouped", "bloom", "falcon")
    run(pythons[MAIN], program, str(folder), "llama31", "mixtral")
    return folder


def start(stack: ExitStack, python: str, model: Path, prefix: str, **options: Any) -> PrivateSwarm:
    """Starts servers with the Petals of an interpreter."""
    options = {"num_blocks": LAYERS, "spans": [(0, LAYERS)], "threads": 1, **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private, "PYTHON", [python])
        return stack.enter_context(PrivateSwarm(str(model), dht_prefix=prefix, **options))


def without_scaling(model: Path, folder: Path) -> Path:
    """Copies a model without its `rope_scaling`, as owners of servers with the release did to serve it at all."""
    copy = Path(shutil.copytree(model, folder / model.name))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rope_scaling": None}))
    return copy


@pytest.fixture(scope="module")
def answers(
    pythons: dict[str, str], models: Path, swarm_client: SwarmClient, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str | None], dict[str, Any]]:
    """What each combination of client and servers computes, or says instead, by model."""
    found: dict[tuple[str, str | None], Any] = {
        (version, None): json.loads(run(python, WORKER, str(models)).stdout) for version, python in pythons.items()
    }
    for servers, python in pythons.items():
        with ExitStack() as stack:
            swarms: list[PrivateSwarm] = []
            for name in MODELS:
                model = models / name
                if servers == RELEASE and name == "mixtral":
                    continue  # such a server ends at once
                if servers == RELEASE and name == "llama31":
                    model = without_scaling(model, tmp_path_factory.mktemp("edited"))
                peers = swarms[0].initial_peers if swarms else ()
                swarms.append(start(stack, python, model, name, initial_peers=peers))
            for swarm in swarms:
                swarm_client.join(swarm)  # waits for its servers
                swarm_client.leave(swarm)
            for client, client_python in pythons.items():
                done = run(client_python, WORKER, str(models), *swarms[0].initial_peers)
                found[client, servers] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("client", "servers"), REFUSED, ids=lambda version: version or "local")
def test_every_model_is_computed_right_or_refused(
    client: str, servers: str | None, answers: dict[tuple[str, str | None], dict[str, Any]]
) -> None:
    differences = {}
    for name in MODELS:
        answer = answers[client, servers][name]
        if name in REFUSED[client, servers]:
            assert isinstance(answer, str) and REFUSED[client, servers][name] in answer, (name, answer)
            assert answer.count("\n") == 0
            continue
        assert isinstance(answer, dict), (name, answer)
        reference = answers[RELEASE if name == "falcon" else MAIN, None][name]
        differences[name] = np.abs(np.subtract(answer["logits"], reference["logits"])).max()
        np.testing.assert_allclose(answer["logits"], reference["logits"], rtol=1e-4, atol=3e-5)
        scale = np.abs(reference["gradients"]).max()
        np.testing.assert_allclose(answer["gradients"], reference["gradients"], rtol=1e-3, atol=1e-4 * scale)
    print(f"client {client}, servers {servers}:", {name: f"{value:.1e}" for name, value in differences.items()})


def test_rope_scaling_of_llama_3_1_is_applied(
    main_python: str, models: Path, tmp_path: Path, answers: dict[tuple[str, str | None], dict[str, Any]]
) -> None:
    without_scaling(models / "llama31", tmp_path)
    unscaled = json.loads(run(main_python, WORKER, str(tmp_path)).stdout)["llama31"]
    scaled = answers[RELEASE, MAIN]["llama31"]
    assert np.abs(np.subtract(unscaled["logits"], scaled["logits"])).max() > 1e-2


def test_servers_that_compute_something_else_are_not_used(
    pythons: dict[str, str],
    models: Path,
    swarm_client: SwarmClient,
    tmp_path: Path,
    answers: dict[tuple[str, str | None], dict[str, Any]],
) -> None:
    unscaled = without_scaling(models / "llama31", tmp_path)
    only = Path(shutil.copytree(models / "llama31", tmp_path / "only" / "llama31"))
    with ExitStack() as stack:
        release = start(stack, pythons[RELEASE], unscaled, "llama31")
        swarm_client.join(release)
        swarm_client.leave(release)
        inputs = ["--model", str(only), "--dht-prefix", "llama31", "--initial-peers", *release.initial_peers]
        status = run(pythons[RELEASE], "-m", "dist_eval.swarm", "status", *inputs, status=1).stdout
        assert re.search(r"0:4 +unfit ", status) and "missing blocks: 0-3" in status
        random_checkpoint(None).save(tmp_path / "tuned")
        inputs += ["--checkpoint", str(tmp_path / "tuned"), "--dataset", str(demo.TEST_DATA), "--check-timeout", "9"]
        inputs += ["--output", str(tmp_path / "out")]
        report = run(pythons[RELEASE], "-m", "dist_eval.doctor", *inputs, status=1).stdout
        assert "Blocks 0-3 of llama31 are held only by servers with Petals 2.2.0.post1" in " ".join(report.split())
        main = start(stack, pythons[MAIN], only, "llama31", initial_peers=release.initial_peers)
        swarm_client.join(main)
        swarm_client.leave(main)
        done = run(pythons[RELEASE], WORKER, str(only.parent), *main.initial_peers)
        assert json.loads(done.stdout)["llama31"] == answers[RELEASE, MAIN]["llama31"]


@pytest.fixture(scope="module")
def mixed_swarm(pythons: dict[str, str], swarm_client: SwarmClient) -> Iterator[PrivateSwarm]:
    """The demo's base model on two servers: one has the release, and the other one main."""
    with ExitStack() as stack:
        halves: list[PrivateSwarm] = []
        for python, blocks in zip(pythons.values(), [(0, 2), (2, 4)], strict=True):
            peers = halves[0].initial_peers if halves else ()
            halves.append(start(stack, python, demo.BASE_MODEL, "base", spans=[blocks], initial_peers=peers))
        swarm_client.join(halves[0])
        swarm_client.leave(halves[0])
        yield halves[0]


def test_a_run_on_servers_of_both_versions_is_exact(
    pythons: dict[str, str], mixed_swarm: PrivateSwarm, tmp_path: Path
) -> None:
    inputs = ["--model", demo.BASE_MODEL, "--checkpoint", demo.CHECKPOINT, "--dataset", demo.TEST_DATA]
    on_swarm = ["--dht-prefix", "base", "--initial-peers", *mixed_swarm.initial_peers]
    runs = {"local": (RELEASE, 1, ["--backend", "local"])}
    runs |= {"one rank": (RELEASE, 1, on_swarm), "two": (RELEASE, 2, on_swarm), "two of main": (MAIN, 2, on_swarm)}
    for name, (version, ranks, options) in runs.items():
        torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "-m", "dist_eval"]
        done = run(pythons[version], *torchrun, *map(str, [*inputs, *options, "--output", tmp_path / name]))
        assert re.fullmatch(PROGRESS, done.stderr)
        results = results_of(tmp_path / name)
        assert results["environment"]["packages"]["petals"] == version
        assert results["coverage"] == {"expected": 596, "seen": 596, "duplicates": 0, "missing": 0, "failed": 0}
        if options is on_swarm:
            assert [server["version"] for server in results["swarm"]["servers"]] == [RELEASE, MAIN]
    files = {name: tmp_path / name / "predictions.parquet" for name in runs}
    assert len({file.read_bytes() for name, file in files.items() if name != "local"}) == 1
    local, mixed = (pq.read_table(files[name]) for name in ("local", "two"))
    assert local["prediction"].equals(mixed["prediction"])
    for column in ("loss", "probabilities"):
        ours, theirs = (np.array(table[column].to_pylist()) for table in (mixed, local))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        print(column, f"differs by at most {np.abs(ours - theirs).max():.1e}")


@pytest.mark.parametrize("name", ["llama31", "mixtral"])
def test_a_model_that_needs_main_is_tuned_and_evaluated(
    name: str, main_python: str, models: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(models / name, tmp_path / name))
    for tokenizer in demo.BASE_MODEL.glob("*token*"):
        shutil.copy(tokenizer, model)
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join(demo.TEST_DATA.read_text().splitlines()[:41]) + "\n")
    inputs = ["--model", str(model), "--dataset", str(rows), "--swarm", "embedded"]
    tuning = ["--tuning-mode", "deep_ptune", "--pre-seq-len", "4", "--epochs", "1", "--output", str(tmp_path / "tuned")]
    assert run(main_python, "-m", "dist_eval.tuning", *inputs, *tuning).returncode == 0
    checkpoint, output = str(tmp_path / "tuned" / "last"), tmp_path / "run"
    evaluation = ["--checkpoint", checkpoint, "--compare-backends", "--output", str(output)]
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "dist_eval"]
    done = run(main_python, *torchrun, *inputs, *evaluation)
    assert re.fullmatch(PROGRESS, done.stderr)
    results = results_of(output)
    assert results["backends"]["compared"] == 40 and results["backends"]["largest_difference"] < 1e-4
    worker = str(ROOT / "tests" / "workers" / "swarm_loop_worker.py")
    loop = json.loads(run(main_python, worker, str(model), checkpoint, str(rows)).stdout)
    assert loop["accuracy"] == results["metrics"]["accuracy"] and loop["difference"] < 1e-4


def test_the_tests_of_models_pass_on_main(main_python: str) -> None:
    tests = [str(ROOT / "tests" / name) for name in ("model", "swarm/test_petals_version.py")]
    run(main_python, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *tests)
