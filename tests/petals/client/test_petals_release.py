"""Petals' release and ours on one swarm: its servers beside ours, its client beside ours.

It runs in an environment of its own, which uv makes (see `benchmarks/petals-2.2`). A server of the release has the
first half of each model, and one of today the other, so that both clients ask both.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import ForkedSwarm, SwarmClient, results_of, run_here
from tiny_models import DECODERS, LAYERS, VOCABULARY, random_checkpoint, save_tiny_models

from benchmarks.processes import call, petals_python
from dist_eval import demo
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.petals.client.petals_version import ANNOUNCED, INSTALLED
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server import private
from dist_eval.petals.server.private import PrivateSwarm

WORKERS = Path(__file__).parents[2] / "workers"
LENGTHS = (60, 33, 8, 1)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed"),
]


class MixedSwarm(ForkedSwarm):
    """A swarm of two servers, of which the first one has Petals' release."""

    def __init__(self, model: Path, name: str) -> None:
        super().__init__(str(model), num_blocks=LAYERS, dht_prefix=name, spans=[(0, 2), (2, LAYERS)], threads=1)

    def start_server(self, number: int) -> None:
        if number:
            self._program = ["-m", "dist_eval.petals.server.server"]
            return super().start_server(number)
        self._program = [str(WORKERS / "petals_release.py")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(private, "PYTHON", [petals_python()])
            return PrivateSwarm.start_server(self, number)

    def kill_server(self, number: int) -> None:
        (super() if number else PrivateSwarm).kill_server(*([number] if number else [self, number]))


def random_texts() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(1))
    return ids, torch.tensor(LENGTHS)


def computed(classifier: Classifier) -> dict[str, Any]:
    """Returns logits, and gradients of all prompts, as `petals_release.classify` does."""
    leaves = {part: getattr(classifier.tuned, part).requires_grad_() for part in ("prompts", "deep_prompts")}
    scores = Classifier(classifier.backbone, replace(classifier.tuned, **leaves)).scores(*random_texts())
    gradients = torch.autograd.grad(scores.square().sum(), list(leaves.values()))
    return {"logits": scores.tolist(), "gradients": torch.cat([part.flatten() for part in gradients]).tolist()}


def in_session(classifier: Classifier) -> torch.Tensor:
    """Returns hidden states of texts that were sent in steps."""
    ids = random_texts()[0]
    session = classifier.backbone.session(*ids.shape, classifier.prompts, rolls_back=False)
    with closing(session), torch.no_grad():
        return torch.cat([session.step(part) for part in ids.split([40, 1, 19], dim=1)], dim=1)


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-5, atol=1e-5)
    scale = np.abs(expected["gradients"]).max()
    np.testing.assert_allclose(found["gradients"], expected["gradients"], rtol=0, atol=1e-4 * scale)
    print("logits differ by", np.abs(np.subtract(found["logits"], expected["logits"])).max())


@pytest.mark.parametrize("family", ["grouped", "bloom", "falcon"])
def test_both_clients_compute_on_both_servers_what_the_local_model_does(
    family: str, tmp_path: Path, swarm_client: SwarmClient
) -> None:
    model = save_tiny_models(tmp_path, family)[family]
    tuned = random_checkpoint("deep_ptune", model_type=DECODERS[family][0])
    local = load_locally(str(model), tuned)
    expected = computed(local)
    tuned.save(checkpoint := tmp_path / "tuned")
    with swarm_client.visiting(MixedSwarm(model, f"mixed-{family}")) as swarm:
        ours = swarm_client.classifier_on_all(swarm, tuned)
        assert_equal(computed(ours), expected)
        torch.testing.assert_close(in_session(ours), in_session(local), rtol=1e-4, atol=1e-4)
        ids, lengths = random_texts()
        (theirs,) = call(
            "tests.workers.petals_release:classify",
            tmp_path,
            petals=True,
            model=str(model),
            checkpoint=str(checkpoint),
            initial_peers=swarm.initial_peers,
            dht_prefix=swarm.dht_prefix,
            texts=[row[:length].tolist() for row, length in zip(ids, lengths, strict=True)],
            save_to=str(tmp_path / "saved"),
        )
    assert_equal(theirs, expected)
    assert TunedCheckpoint.load(tmp_path / "saved").digest() == tuned.digest()


@pytest.fixture
def demo_peers(swarm_client: SwarmClient) -> Iterator[list[str]]:
    with swarm_client.visiting(MixedSwarm(demo.BASE_MODEL, "base")) as swarm:
        swarm_client.join(swarm)
        yield swarm.initial_peers


def test_a_run_on_servers_of_both_versions_is_exact(demo_peers: list[str], tmp_path: Path) -> None:
    command = ["-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT)]
    command += ["--dataset", str(demo.TEST_DATA)]
    local, on_swarm = tmp_path / "local", tmp_path / "swarm"
    assert run_here(*command, "--backend", "local", "--output", str(local)) == 0
    assert run_here(*command, "--initial-peers", *demo_peers, "--output", str(on_swarm)) == 0
    results = results_of(on_swarm)
    assert results["coverage"] == {"expected": 596, "seen": 596, "duplicates": 0, "missing": 0, "failed": 0}
    assert [server["version"] for server in results["swarm"]["servers"]] == [INSTALLED, ANNOUNCED]
    expected, found = (pq.read_table(folder / "predictions.parquet") for folder in (local, on_swarm))
    assert found["prediction"].equals(expected["prediction"])
    for column in ("loss", "probabilities"):
        ours, theirs = (np.array(table[column].to_pylist()) for table in (found, expected))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
