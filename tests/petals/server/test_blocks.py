"""Blocks of every family against the whole model of transformers: forwards, sessions, gradients."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Launcher
from huggingface_hub.errors import StrictDataclassError
from tiny_models import DECODERS, LAYERS, edited_tensors, make_tiny_model
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput

from dist_eval.errors import CheckpointError
from dist_eval.model.output_embedding import LanguageModelHead
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.weights import ModelWeights
from dist_eval.petals.server.block_memory import block_bytes
from dist_eval.petals.server.blocks import Block, load_block
from dist_eval.petals.server.session_cache import SessionLayer, block_caches

RECURRENT = ("qwen3_next", "recurrent_gemma")
LENGTH = 150
"""Longer than the sliding windows."""


class Whole:
    """A model of transformers, and the hidden states before and after its layers."""

    def __init__(self, model: Any, layers: str) -> None:
        self._model, self._stack = model.base_model, model.base_model.get_submodule(layers)

    def run(self, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs: list[torch.Tensor] = []
        outputs: list[torch.Tensor] = []

        def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            inputs.append(hidden.detach().requires_grad_())
            return ((inputs[0], *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": inputs[0]})

        hooks = [
            self._stack[0].register_forward_pre_hook(before, with_kwargs=True),
            self._stack[-1].register_forward_hook(
                lambda _, args, output: outputs.append(output[0] if isinstance(output, tuple) else output)
            ),
        ]
        self._model(token_ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        return inputs[0], outputs[0]


def bytes_of(block: Block) -> int:
    return sum(parameter.nbytes for parameter in block.parameters())


def blocks_of(folder: Path, dtype: torch.dtype = torch.float32) -> list[Block]:
    architecture = Architecture(AutoConfig.from_pretrained(folder), str(folder))
    weights = ModelWeights(str(folder), architecture)
    return [load_block(architecture, weights, index, dtype) for index in range(LAYERS)]


def through(blocks: list[Block], hidden: torch.Tensor, caches: list[Cache] | None = None) -> torch.Tensor:
    for number, block in enumerate(blocks):
        (hidden,) = block(hidden, caches[number] if caches else None)
    return hidden


def session_caches(architecture: Architecture, *, rolls_back: bool) -> list[Cache]:
    """Makes the caches that a server allocates."""
    return [
        Cache(layers=[SessionLayer(*map(torch.zeros, kept.shapes(3, LENGTH, rolls_back=rolls_back)), 0, kept.window)])
        for kept in filter(None, block_caches(architecture))
    ]


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "wide"])
def test_blocks_compute_what_the_whole_model_does(name: str, tmp_path: Path) -> None:
    model = make_tiny_model(name)
    model.save_pretrained(tmp_path)
    blocks = blocks_of(tmp_path)
    token_ids = torch.randint(0, 128, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    hidden, expected = Whole(model, Architecture(model.config).layers).run(token_ids)
    tolerance = 1e-6 * float(expected.detach().abs().max())

    found = through(blocks, hidden)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    assert block_bytes(Architecture(model.config), torch.float32) == [bytes_of(block) for block in blocks]

    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    (wanted,) = torch.autograd.grad(expected, hidden, gradient)
    (got,) = torch.autograd.grad(found, hidden, gradient)
    torch.testing.assert_close(got, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)

    if name in RECURRENT:
        return
    for rolls_back in (True, False):
        caches = session_caches(Architecture(model.config), rolls_back=rolls_back)
        with torch.no_grad():
            steps = [through(blocks, step, caches) for step in hidden.split([100, 1, 29, 20], dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), expected.detach(), atol=20 * tolerance, rtol=0)


def test_a_text_is_computed_as_if_it_were_the_first_one_however_long_earlier_ones_were(tmp_path: Path) -> None:
    model = make_tiny_model("dynamic")
    model.save_pretrained(tmp_path)
    most, (block, *_) = model.config.max_position_embeddings, blocks_of(tmp_path)
    hidden = torch.randn(1, 3 * most, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for length in (most, 2 * most):
            (first,) = block(hidden[:, :length])
            block(hidden)
            assert torch.equal(block(hidden[:, :length])[0], first)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "mixtral", "deepseek_v3"])
def test_blocks_compute_in_the_dtype_of_a_server(name: str, tmp_path: Path) -> None:
    make_tiny_model(name).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    token_ids = torch.randint(0, 128, (2, 40), generator=torch.Generator().manual_seed(1))
    hidden, expected = Whole(model, Architecture(model.config).layers).run(token_ids)
    blocks = blocks_of(tmp_path, torch.bfloat16)
    found = through(blocks, hidden)
    assert found.dtype == torch.bfloat16
    expected_bytes = block_bytes(Architecture(model.config), torch.bfloat16)
    assert expected_bytes == pytest.approx([bytes_of(block) for block in blocks], rel=0.01)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_weights_are_mapped_or_copied_but_not_both(tmp_path: Path) -> None:
    for name, is_mapped in {"qwen3": True, "mixtral": False}.items():  # whose experts are converted
        folder = tmp_path / name
        make_tiny_model(name).save_pretrained(folder)
        blocks = blocks_of(folder)
        gc.collect()
        assert (str(folder) in Path("/proc/self/maps").read_text()) is is_mapped
        del blocks


def test_a_block_is_read_from_the_shards_that_hold_it(tmp_path: Path) -> None:
    model = make_tiny_model("qwen3")
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    shards = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert len(shards) > LAYERS
    for one, other in zip(blocks_of(tmp_path / "whole"), blocks_of(tmp_path / "shards"), strict=True):
        for (name, tensor), (other_name, other_tensor) in zip(
            one.state_dict().items(), other.state_dict().items(), strict=True
        ):
            assert name == other_name and torch.equal(tensor, other_tensor)


REFUSED = {
    "t5": ({}, "encoder"),
    "modernbert": ({}, "no language model"),
    "bert": ({}, "position_embeddings"),
    "opt": ({"hidden_size": 64, "num_attention_heads": 4}, "embed_positions"),
    "gemma3n_text": ({}, "share keys and values"),
    "mamba": ({}, "none of its layers has attention"),
    "nemotron_h": ({}, "does not run with other layers"),
    "gpt2": ({"n_embd": 64, "n_layer": 4, "n_head": 4}, "'wpe.weight'"),
    "gemma4_text": ({"num_hidden_layers": 4, "num_kv_shared_layers": 2}, "share keys and values"),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_served_is_refused_by_what_it_is(model_type: str) -> None:
    settings, reason = REFUSED[model_type]
    with pytest.raises(CheckpointError, match=reason):
        Architecture(AutoConfig.for_model(model_type, **settings), "this model")


class MixedConfig(LlamaConfig):
    model_type = "mixed"
    how: str = ""


class MixedModel(LlamaModel):
    """Its layers are no chain, or more than a norm follows them."""

    def forward(self, input_ids: Any = None, *, inputs_embeds: torch.Tensor, **_: Any) -> BaseModelOutput:
        hidden = inputs_embeds
        for layer in self.layers:
            hidden = layer(hidden, inputs_embeds) if self.config.how == "beside" else layer(hidden)
            hidden = 2 * hidden if self.config.how == "between" else hidden
        return BaseModelOutput(last_hidden_state=2 * self.norm(hidden))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("between", "computed between its layers"),
        ("beside", "need more than the outputs"),
        ("after", "its layers are not followed by a single norm"),
    ],
)
def test_what_is_more_than_a_chain_of_layers_and_a_norm_is_refused(
    how: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mapping in (MODEL_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING):
        monkeypatch.setitem(mapping._extra_content, MixedConfig, MixedModel)
    with pytest.raises(CheckpointError, match=f"this model cannot be served in blocks: .*{reason}"):
        Architecture(MixedConfig(how=how, hidden_size=64, num_hidden_layers=2), "this model")


@pytest.mark.parametrize(
    ("name", "has_cache"), [("qwen3", True), ("gemma3", True), ("qwen3_next", False), ("xglm", False)]
)
def test_the_config_tells_whether_keys_and_values_are_enough_to_continue_a_text(name: str, has_cache: bool) -> None:
    assert Architecture(make_tiny_model(name).config).has_attention_cache == has_cache


def test_of_a_model_for_images_the_decoder_is_served() -> None:
    config = AutoConfig.for_model("gemma3", text_config={"num_hidden_layers": 2, "hidden_size": 64})
    assert Architecture(config).config.model_type == "gemma3_text"


@pytest.mark.parametrize("program", ["dist_eval", "dist_eval.petals", "dist_eval.doctor"])
def test_nothing_is_started_for_what_cannot_be_served(program: str, launcher: Launcher, tmp_path: Path) -> None:
    model = tmp_path / "gpt"
    AutoConfig.for_model("gpt2", n_embd=64, n_layer=4, n_head=4).save_pretrained(model)
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\na,0\nb,1\n")
    prompt = ("--prompt", "{text}", "--label-words", "0=a", "1=b", "--dataset", str(rows), "--swarm", "embedded")
    further = [] if program == "dist_eval.petals" else [*prompt, "--output", str(tmp_path / "out")]
    run = launcher.run("-m", program, "--model", str(model), *further)
    assert run.returncode == 1
    said = " ".join((run.stdout + run.stderr).split())  # the doctor breaks lines
    assert said.count("cannot be served in blocks: its 'wpe.weight', outside the layers, is neither the emb") == 1
    assert "Traceback" not in run.stderr


def test_weights_that_nothing_would_read_are_named(tmp_path: Path) -> None:
    make_tiny_model("qwen3").save_pretrained(tmp_path)
    with edited_tensors(tmp_path) as tensors:
        tensors["model.layers.2.self_attn.q_proj.weight_scale"] = torch.ones(1)
    with pytest.raises(CheckpointError, match=r"Block 2 .* ignores: .*q_proj\.weight_scale"):
        blocks_of(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    make_tiny_model("qwen3").save_pretrained(tmp_path)
    with edited_tensors(tmp_path) as tensors:
        del tensors["model.layers.2.self_attn.q_norm.weight"]
    with pytest.raises(CheckpointError, match=r"Block 2 .*q_norm"):
        blocks_of(tmp_path)


@pytest.mark.slow
def test_every_language_model_of_transformers_is_served_or_refused_with_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    served, refused = set(), dict[str, str]()
    for config_class in MODEL_FOR_CAUSAL_LM_MAPPING:
        try:
            config = config_class()
        except StrictDataclassError:  # it has no defaults
            continue
        try:
            architecture = Architecture(config, "it")
            LanguageModelHead.find(architecture)
            served.add(architecture.config.model_type)
        except CheckpointError as error:
            refused[config.model_type] = str(error)
    with capsys.disabled():
        print(f"{len(served)} types of {len(MODEL_FOR_CAUSAL_LM_MAPPING)} are served with their default configs")
    assert {"llama", "qwen3", "gemma3_text", "mistral", "gpt_oss"} <= served
    assert all(why.startswith("it cannot be served in blocks: ") and "\n" not in why for why in refused.values())
