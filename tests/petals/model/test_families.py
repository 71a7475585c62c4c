"""Logits, gradients and generated tokens on a swarm, beside the same model in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import FAMILIES, ForkedSwarm
from huggingface_hub.errors import StrictDataclassError
from tiny_models import DECODERS, LAYERS, save_tiny_models
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

from dist_eval import PrivateSwarm
from dist_eval.errors import CheckpointError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.model.base import SwarmBase

from .conftest import both, padded, texts

OTHERS = [name for name in DECODERS if name not in (*FAMILIES, "wide")]


@pytest.fixture(scope="module", params=[*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def models(
    request: pytest.FixtureRequest, family_swarms: dict[str, PrivateSwarm], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A model on a swarm, and the same in this process."""
    if request.param in family_swarms:
        with both(family_swarms[request.param]) as found:
            yield found
        return
    folder = save_tiny_models(tmp_path_factory.mktemp("models"), request.param)[request.param]
    spans = [(0, 2), (2, LAYERS)]
    with (
        ForkedSwarm(str(folder), num_blocks=LAYERS, dht_prefix=folder.name, spans=spans) as swarm,
        both(swarm) as found,
    ):
        yield found


def test_it_is_of_the_familys_own_class(models: Any) -> None:
    model, local = models
    assert isinstance(model, type(local)) and type(model).__name__ == type(local).__name__
    settings = [each.generation_config.to_dict() for each in models]
    assert all((settings[0][name] or None) == (value or None) for name, value in settings[1].items())


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_logits_of_a_row_are_those_of_the_row_alone(models: Any, side: str) -> None:
    model, local = models
    rows = texts()
    ids, mask = padded(rows, side)
    with torch.no_grad():
        found = model(ids, attention_mask=mask).logits
        for row, own, logits in zip(rows, mask.bool(), found, strict=True):
            expected = local(row[None]).logits[0]
            torch.testing.assert_close(logits[own], expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


def test_loss_and_gradients(models: Any) -> None:
    model, local = models
    ids, mask = padded(texts(), "right")
    labels = ids.masked_fill(mask == 0, -100)
    words = local.get_input_embeddings()(ids).detach()
    found, expected = words.clone().requires_grad_(), words.clone().requires_grad_()
    losses = [
        each(inputs_embeds=inputs, attention_mask=mask, labels=labels).loss
        for each, inputs in ((model, found), (local, expected))
    ]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(found.grad, expected.grad, atol=1e-5 * float(expected.grad.abs().max()), rtol=0)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 20}, {"use_cache": False}],
    ids=["greedy", "beams", "sampled", "without a cache"],
)
def test_generated_texts_of_unequal_prompts(models: Any, options: dict[str, Any]) -> None:
    model, local = models
    if local.config.model_type == "recurrent_gemma":
        pytest.skip("in transformers, the padding of a row changes its texts")
    ids, mask = padded(texts(), "left")
    found = []
    for each in (model, local):
        torch.manual_seed(2)
        found.append(each.generate(ids, attention_mask=mask, max_new_tokens=8, pad_token_id=0, **options))
    assert torch.equal(*found)


@pytest.mark.slow
def test_no_model_of_transformers_has_an_attribute_of_the_same_name() -> None:
    mixin = {name for name in dir(SwarmBase) if not hasattr(PreTrainedModel, name)}
    mixin |= {"swarm_blocks", "connection", "architecture", "_loaded_words"}  # of instances
    served = 0
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        try:
            architecture = Architecture(kind())
        except (StrictDataclassError, CheckpointError):  # it has no defaults, or cannot be served
            continue
        with torch.device("meta"):
            model = architecture.base_class(architecture.config)
        served += 1
        assert not mixin & {*vars(model), *dict(model.named_children())}, kind.model_type
    assert served > 90
