"""Servers that differ: only some hold a LoRA adapter, or they compute in different precisions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TIMEOUT, ForkedSwarm, SwarmClient, requests_of, results_of, run_here, wait_for

from dist_eval import demo
from dist_eval.errors import ConfigError, SwarmError
from dist_eval.model.backbone import LocalBackbone
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.client.coverage import wait_until_covered
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server.private import PrivateSwarm

pytestmark = pytest.mark.slow

PREFIX, BLOCKS = demo.BASE_MODEL.name, 4
IDS = torch.randint(3, 31, (5, 40), generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([40, 3, 17, 40, 1])
OPTIONS = ("--checkpoint", str(demo.CHECKPOINT), "--model", str(demo.BASE_MODEL), "--dataset", str(demo.TEST_DATA))


def swarm_of(**options: Any) -> ForkedSwarm:
    options = {"dht_prefix": PREFIX, "spans": [(0, BLOCKS)], **options}
    return ForkedSwarm(str(demo.BASE_MODEL), num_blocks=BLOCKS, threads=1, **options)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A LoRA adapter for the demo's base model, made by peft."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(demo.BASE_MODEL), config)
    for name, tensor in model.named_parameters():
        if "lora_B" in name:  # zero by default: the adapter would change nothing
            torch.nn.init.normal_(tensor, std=0.3)
    folder = tmp_path_factory.mktemp("adapters") / "lora"
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def local(adapter: str) -> Classifier:
    """The demo's classifier on the base model with the adapter, as peft computes it in this process."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(demo.BASE_MODEL), adapter).eval()
    base = model.base_model.model.model
    return Classifier(LocalBackbone(base, Architecture(base.config)), TunedCheckpoint.load(demo.CHECKPOINT))


@pytest.fixture(scope="module")
def adapter_swarm(adapter: str, swarm_client: SwarmClient) -> Iterator[PrivateSwarm]:
    """Two servers with all blocks, of which the second one holds the adapter."""
    with swarm_client.visiting(swarm_of()) as swarm, swarm_of(initial_peers=swarm.initial_peers, adapters=[adapter]):
        dht = swarm_client.join(swarm)
        wait_until_covered(dht, PREFIX, BLOCKS, TIMEOUT, servers=2)
        yield swarm


def test_logits_and_gradients_with_an_adapter_equal_those_of_peft(
    adapter: str, local: Classifier, adapter_swarm: PrivateSwarm, swarm_client: SwarmClient
) -> None:
    tuned = TunedCheckpoint.load(demo.CHECKPOINT)
    plain = load_locally(str(demo.BASE_MODEL), tuned).logits(IDS, LENGTHS)
    expected = local.logits(IDS, LENGTHS)
    assert (expected - plain).abs().max() > 0.1
    remote = swarm_client.classifier(adapter_swarm, tuned, adapter=adapter)
    assert [span.announced.adapters for span in requests_of(remote).servers.spans()] == [(adapter,)]
    torch.testing.assert_close(remote.logits(IDS, LENGTHS), expected)
    traffic = remote.traffic()
    assert traffic is not None
    assert [server.announced and server.announced.adapters for server in traffic.servers] == [(adapter,)]

    def gradient(classifier: Classifier) -> torch.Tensor:
        assert tuned.deep_prompts is not None
        leaf = tuned.deep_prompts.clone().requires_grad_()
        scores = Classifier(classifier.backbone, replace(tuned, deep_prompts=leaf)).scores(IDS, LENGTHS)
        return torch.autograd.grad(scores.square().sum(), leaf)[0]

    own, reference = gradient(remote), gradient(local)
    torch.testing.assert_close(own, reference, rtol=1e-3, atol=1e-4 * float(reference.abs().max()))

    without = swarm_client.classifier(adapter_swarm, tuned)
    requests = requests_of(without)
    assert wait_for(lambda: len(requests.servers.spans()) == 2 or requests.servers.refresh())
    for span in requests.servers.spans():  # the one that holds the adapter leaves it out, too, unless it is asked for
        hidden = requests.ask(span, without.backbone.embedded(IDS, tuned.prompts), tuned.deep_prompts)
        last = hidden[torch.arange(len(IDS)), tuned.pre_seq_len + LENGTHS - 1]
        torch.testing.assert_close(without.backbone.final_norm(last) @ tuned.head.T, plain)


def test_a_run_with_an_adapter_names_it_and_does_not_resume_without(
    adapter: str, adapter_swarm: PrivateSwarm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["-m", "dist_eval", *OPTIONS, "--initial-peers", *adapter_swarm.initial_peers]
    command += ["--output", str(tmp_path / "run")]
    assert run_here(*command, "--adapter", adapter) == 0
    results = results_of(tmp_path / "run")
    assert results["model"]["adapter"] == results["config"]["adapter"] == adapter
    assert results["swarm"]["precisions"] == ["float32"]
    assert sorted(map(len, (server["adapters"] for server in results["swarm"]["servers"]))) == [0, 1]
    [server] = results["ranks"][0]["traffic"]["servers"]
    assert server["announced"]["adapters"] == [adapter]
    assert run_here(*command) == 1
    assert "it differs in the --adapter" in capfd.readouterr().err


def test_an_adapter_that_no_server_holds_is_named_at_once(
    adapter: str, adapter_swarm: PrivateSwarm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["-m", "dist_eval", *OPTIONS, "--initial-peers", *adapter_swarm.initial_peers]
    assert run_here(*command, "--output", str(tmp_path), "--adapter", "org/none") == 1
    err = capfd.readouterr().err
    assert f"No online server holds the adapter 'org/none' for blocks 0-3 of {PREFIX}." in err
    assert f"The servers announce {adapter} (blocks 0:4): name one that covers all blocks with --adapter" in err


def test_servers_of_different_precisions_are_told_in_the_results(
    swarm_client: SwarmClient, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "mixed"
    with (
        swarm_client.visiting(swarm_of(dht_prefix=name, spans=[(0, 2)])) as swarm,
        swarm_of(dht_prefix=name, spans=[(2, 4)], torch_dtype="bfloat16", initial_peers=swarm.initial_peers),
    ):
        found = wait_until_covered(swarm_client.join(swarm), name, BLOCKS, TIMEOUT).describe()
        assert "Servers compute differently (bfloat16, float32)" in found
        command = ["-m", "dist_eval", *OPTIONS, "--initial-peers", *swarm.initial_peers, "--dht-prefix", name]
        assert run_here(*command, "--output", str(tmp_path / "run")) == 0
        assert results_of(tmp_path / "run")["swarm"]["precisions"] == ["bfloat16", "float32"]
        assert "servers computed in bfloat16 and float32: the figures depend on" in capfd.readouterr().out


def test_an_adapter_whose_name_petals_cannot_hold_is_refused(adapter: str, tmp_path: Path) -> None:
    folder = shutil.copytree(adapter, tmp_path / "lora.v1")
    with pytest.raises(ConfigError, match=r"lora\.v1.*has a dot"):
        swarm_of(adapters=[str(folder)])


def test_a_folder_without_an_adapter_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\S+/nothing with a LoRA adapter does not exist\."):
        swarm_of(adapters=[str(tmp_path / "nothing")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"\S+/empty holds no LoRA adapter: it lacks adapter_config\.json\."):
        swarm_of(adapters=[str(tmp_path / "empty")])


def test_a_folder_without_safetensors_is_no_adapter(adapter: str, tmp_path: Path) -> None:
    folder = shutil.copytree(adapter, tmp_path / "bare")
    (folder / "adapter_model.safetensors").unlink()
    with swarm_of(adapters=[str(folder)]) as swarm:
        assert wait_for(lambda: swarm.servers[0].poll() is not None)
        with pytest.raises(SwarmError, match=r"The adapter \S+/bare lacks adapter_model\.safetensors\."):
            swarm.require_alive()
