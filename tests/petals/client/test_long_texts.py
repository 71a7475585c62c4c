"""A text of 32,768 tokens through a swarm, which no request has room for, and in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import ForkedSwarm, Launcher, SwarmClient
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS, LAYERS = 32_768, 2
SETTINGS = {
    "vocab_size": 32_000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2 * TOKENS,
}

SCORES = """import json, resource, sys, time
from pathlib import Path
import numpy as np
import torch
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.swarm_backbone import load_swarm_backbone
from dist_eval.model.language_model import CausalModel
from dist_eval.petals.client.client import join_swarm
from dist_eval.petals.base_model.config import max_request_tokens
from dist_eval.petals.client.hivemind_compat import prepare_hivemind

model, tokens, out, prefix, *peers = sys.argv[1:]
causal = CausalModel.read(model)
if peers:
    prepare_hivemind(sockets=Path(out).parent)
    options = {"request_timeout": 600, "max_retries": 1, "request_tokens": max_request_tokens(causal.config)}
    backbone = load_swarm_backbone(model, join_swarm(peers, 60), dht_prefix=prefix, **options)
else:
    backbone = load_local_backbone(model)
ids = torch.randint(3, 32_000, (1, int(tokens) + 1), generator=torch.Generator().manual_seed(1))
language_model = causal.on(backbone, 1024)
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
with torch.no_grad():
    hidden = backbone.final_norm(language_model.backbone.hidden_states(ids[:, :-1])[0])
    positions = torch.arange(len(hidden))
    found, _ = language_model.output.log_likelihoods(hidden, positions, ids[0, 1:])
seconds = time.monotonic() - start
np.save(out, found.numpy())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "MiB": (peak - before) / 1024}), flush=True)
backbone.close()
"""


def scores(launcher: Launcher, out: Path, *arguments: str) -> tuple[np.ndarray, dict[str, Any]]:
    model, *rest = arguments
    done = launcher.run("-c", SCORES, model, str(TOKENS), str(out), *rest, preloaded=False)
    assert not done.returncode, done.stderr
    return np.load(out), json.loads(done.stdout)


def peaks(swarm: ForkedSwarm) -> list[float]:
    """Returns the most MiB that the largest process of each server has taken."""
    found = []
    for number in range(len(swarm.servers)):
        group = swarm.group(number)
        members = [one for one in psutil.process_iter() if _group(one.pid) == group]
        found.append(max(_peak(one.pid) for one in members))
    return found


def _group(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()[2])
    except OSError:
        return 0


def _peak(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


@pytest.mark.slow
def test_the_log_likelihoods_of_32768_tokens_are_those_of_one_process(
    swarm_client: SwarmClient, launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SETTINGS))
    model.save_pretrained(tmp_path / "model")
    name, out = str(tmp_path / "model"), launcher.temporary
    spans = [(0, 1), (1, LAYERS)]
    swarm = ForkedSwarm(name, num_blocks=LAYERS, dht_prefix="long", spans=spans, threads=1, cache_tokens=TOKENS)
    with swarm_client.visiting(swarm):
        swarm_client.join(swarm)
        before = peaks(swarm)
        found, of_swarm = scores(launcher, out / "swarm.npy", name, "long", *swarm.initial_peers)
        grown = [after - at_first for after, at_first in zip(peaks(swarm), before, strict=True)]
    expected, here = scores(launcher, out / "local.npy", name, "-")
    largest = float(np.abs(found - expected).max())
    with capsys.disabled():
        print(
            f"\nlargest difference of a log-likelihood: {largest:.1e}, of the sum: {found.sum() - expected.sum():.1e}"
        )
        print(f"swarm: {of_swarm['seconds']:.0f} s, client {of_swarm['MiB']:.0f} MiB, servers {grown}")
        print(f"one process: {here['seconds']:.0f} s, {here['MiB']:.0f} MiB")
    assert len(found) == TOKENS and largest < 1e-4
