"""What a program does with an open model, beside the same model in this process: no change of it is lost silently."""

from __future__ import annotations

import copy
import gc
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PrivateSwarm, wait_for

from dist_eval import AutoDistributedModelForCausalLM, AutoDistributedModelForSequenceClassification, evaluate
from dist_eval.errors import ConfigError, DataError
from dist_eval.petals.model.base import LoadedWords

from .conftest import both, padded, texts


def by_its_data(module: torch.nn.Module) -> None:
    module.weight.data.mul_(2)


def by_a_fused_optimizer(module: torch.nn.Module) -> None:
    weight = module.weight.requires_grad_()
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], lr=0.5, fused=True).step()
    weight.grad = None
    weight.requires_grad_(False)


def by_another_forward(module: torch.nn.Module) -> None:
    forward = module.forward
    module.forward = lambda *inputs: forward(*inputs).roll(1, -1)


def by_another_class(module: torch.nn.Module) -> None:
    own = type(module)
    module.__class__ = type("Rolled", (own,), {"forward": lambda self, *inputs: own.forward(self, *inputs).roll(1, -1)})


def by_a_hook(module: torch.nn.Module) -> None:
    module.register_forward_hook(lambda _, inputs, output: output.roll(1, -1))


@pytest.mark.parametrize("change", [by_its_data, by_a_fused_optimizer, by_another_forward, by_another_class, by_a_hook])
@pytest.mark.parametrize("part", ["word_embeddings", "word_embeddings_layernorm"])
def test_changed_embeddings_are_those_that_servers_get(
    part: str, change: Callable[[Any], None], family_swarms: dict[str, PrivateSwarm]
) -> None:
    ids = texts()[0][None]
    with both(family_swarms["bloom"]) as models, torch.no_grad():
        before = models[0](ids).logits
        for model in models:
            change(getattr(model.transformer, part))
        found, expected = (model(ids).logits for model in models)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert not torch.allclose(found, before, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_change_of_the_values_of_an_embedding_is_found(dtype: torch.dtype) -> None:
    words = torch.nn.Embedding(50, 6, dtype=dtype)
    original, ids = words.weight.data, torch.arange(50)
    loaded = LoadedWords([words])
    for changed in (original.roll(2, 1), original[:, [2, 3, 0, 1, 4, 5]], -original, original + 1):
        words.weight.data = changed.contiguous()
        assert not any(loaded.are_equal(words.weight, [], one) for one in ids[:, None])
    words.weight.data = original.clone()
    assert loaded.are_equal(words.weight, [])


def test_tokens_can_be_added(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids, mask = padded(texts(), "left")
    with both(family_swarms["llama"]) as models, torch.no_grad():
        added = torch.randn(64)
        for model in models:
            model.resize_token_embeddings(129)
            model.get_input_embeddings().weight.data[128] = added
        for given in (ids, ids.masked_fill(mask == 0, 128), ids.masked_fill(ids == ids[0, -1], 128)):
            found, expected = (model(given, attention_mask=mask).logits for model in models)
            real = mask.bool()
            torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=0)


def test_a_batch_that_is_used_again_changes_no_earlier_text(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids, batch = texts()[0][None], torch.empty(1, 1, dtype=torch.long)
    with both(family_swarms["llama"]) as (model, local), torch.no_grad():
        cache = None
        for column in range(6):
            batch.copy_(ids[:, column : column + 1])
            output = model(batch, use_cache=True, cache=cache)
            cache = output.cache
        torch.testing.assert_close(output.logits[:, 0], local(ids[:, :6]).logits[:, -1], atol=1e-5, rtol=0)
        cache.close()


def test_gradients_pass_through_a_continued_text(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids, gradients = texts()[0][None], list[torch.Tensor]()
    with both(family_swarms["llama"]) as models:
        for model in models:
            words = model.get_input_embeddings()(ids[:, :8]).detach().requires_grad_()
            first = model(inputs_embeds=words, use_cache=True)
            second = model(ids[:, 8:12], past_key_values=first.past_key_values)
            (first.logits.sum() * 0.01 + second.logits.pow(2).sum()).backward()
            gradients.append(words.grad)
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
        words = words.detach().requires_grad_()
        (once,) = torch.autograd.grad(models[0](inputs_embeds=words).logits.sum(), words, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            once.pow(2).sum().backward()


@pytest.mark.parametrize("returned", [1, 2, 4])
def test_a_session_continues_the_texts_that_a_search_with_beams_returned(
    returned: int, family_swarms: dict[str, PrivateSwarm]
) -> None:
    ids, beams = texts()[0][None], {"num_beams": 4, "num_return_sequences": returned, "pad_token_id": 0}
    with both(family_swarms["llama"]) as (model, local), model.inference_session(max_length=60) as session:
        model.generate(ids, max_new_tokens=6, **beams)
        known = session.output_ids
        found = model.generate(max_new_tokens=4, pad_token_id=0)
        assert torch.equal(torch.cat([known, found], dim=1), local.generate(known, max_new_tokens=4, pad_token_id=0))
        if returned > 1:
            with pytest.raises(DataError, match=f"1 texts cannot continue a session of {returned}"):
                model.generate(ids, max_new_tokens=4, pad_token_id=0)


def raising_at(length: int) -> Callable[..., bool]:
    def stop(ids: torch.Tensor, scores: Any) -> bool:
        if ids.shape[1] == length:
            raise KeyboardInterrupt
        return False

    return stop


def test_a_session_goes_back_and_generates_again(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids = texts()[0][None]
    with both(family_swarms["llama"]) as (model, local):
        with model.inference_session(max_length=60) as session:
            model.generate(ids, max_new_tokens=3, pad_token_id=0)
            session.position = 14
            found = model.generate(max_new_tokens=4, pad_token_id=0)
            assert torch.equal(found, local.generate(ids[:, :14], max_new_tokens=4, pad_token_id=0)[:, 14:])
            with pytest.raises(KeyboardInterrupt):
                model.generate(max_new_tokens=4, pad_token_id=0, stopping_criteria=[raising_at(20)])
            more = model.generate(max_new_tokens=3, pad_token_id=0)
            whole = torch.cat([ids[:, :14], found], dim=1)
            assert torch.equal(more, local.generate(whole, max_new_tokens=3, pad_token_id=0)[:, 18:])
            with torch.no_grad():
                model(found[:, -1:])
                model(found[:, -1:])
            with pytest.raises(ConfigError, match="tokens without ids, of a forward"):
                model.generate(max_new_tokens=2, pad_token_id=0)
        with model.inference_session(max_length=60), torch.no_grad():
            model(ids)
            with pytest.raises(ConfigError, match="texts of a forward"):
                model.generate(max_new_tokens=2, pad_token_id=0)


def test_an_interrupted_call_ends_and_frees_the_servers(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids, mask = padded(texts(600), "left")
    with both(family_swarms["llama"]) as (model, _):
        requests = model.swarm_base.swarm_blocks.requests

        def free() -> list[float]:
            return list(requests.servers.free_cache().values())

        before = free()
        for seconds in (0.2, 0.5):
            timer = threading.Timer(seconds, signal.raise_signal, [signal.SIGINT])
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                model.generate(ids, attention_mask=mask, max_new_tokens=900, pad_token_id=0)
            timer.join()
        assert wait_for(lambda: free() == before)
        assert requests.traffic().retries == 0


def test_the_connection_lasts_as_long_as_any_copy(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids = texts()[0][None]
    with both(family_swarms["llama"]) as (_, local), torch.no_grad():
        swarm = family_swarms["llama"]
        opened = AutoDistributedModelForCausalLM.from_pretrained(
            swarm.model, initial_peers=swarm.initial_peers, dht_prefix=swarm.dht_prefix
        )
        base, connection = copy.deepcopy(opened).model, opened.connection
        del opened
        gc.collect()
        torch.testing.assert_close(base(ids).last_hidden_state, local.model(ids).last_hidden_state, atol=1e-5, rtol=0)
        connection.close()


def test_what_servers_or_checkpoints_would_leave_out_is_refused(
    family_swarms: dict[str, PrivateSwarm], tmp_path: Path
) -> None:
    with both(family_swarms["llama"], tuning_mode="ptune", pre_seq_len=2) as (model, _):
        model.lm_head.weight.requires_grad_()
        with pytest.raises(ConfigError, match=r"not lm_head\.weight"):
            model.save_pretrained(tmp_path)
    for changed in ({"rms_norm_eps": 0.5}, {"hidden_act": "relu"}, {"num_hidden_layers": 2}):
        with pytest.raises(ConfigError, match=f"{next(iter(changed))} cannot be set"):
            AutoDistributedModelForCausalLM.from_pretrained(
                family_swarms["llama"].model, initial_peers=family_swarms["llama"].initial_peers, **changed
            )


def test_layers_that_are_not_here_are_neither_called_nor_changed(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids = texts()[0][None]
    with both(family_swarms["llama"]) as (model, local), torch.no_grad():
        hidden = local.get_input_embeddings()(ids)
        for layers in (model.model.layers[1], model.model.layers[0:2]):
            with pytest.raises(ConfigError, match="The layers of a model on a swarm are on its servers"):
                layers(hidden)
        hook = model.model.layers[2].register_forward_hook(lambda *_: None)
        with pytest.raises(ConfigError, match="on its servers"):
            model(ids)
        hook.remove()
        torch.testing.assert_close(model(ids).logits, local(ids).logits, atol=1e-4, rtol=0)
        model.model.layers = model.model.layers[:2]
        with pytest.raises(ConfigError, match="on its servers"):
            model(ids)


def test_sessions_and_caches_belong_to_one_model(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids = texts()[0][None]
    with both(family_swarms["llama"]) as (model, local), torch.no_grad():
        other = copy.deepcopy(model)
        with model.inference_session(max_length=60) as session, other.inference_session(max_length=60) as of_other:
            model.generate(ids, max_new_tokens=3, pad_token_id=0)
            assert session.position > 0 == of_other.position
            with pytest.raises(ConfigError, match="session has texts of another model"):
                model.generate(ids, session=of_other)
        with pytest.raises(ConfigError, match="The session is closed"):
            model.generate(session=session, max_new_tokens=1)
        cache = model(ids[:, :10], use_cache=True).past_key_values
        with pytest.raises(ConfigError, match="has texts of another model"):
            other(ids[:, 10:], past_key_values=cache)
        copied = copy.deepcopy(cache)
        for start, kept in ((10, cache), (12, copied)):
            more = ids[:, start:]
            found = model(more, past_key_values=kept, use_cache=True).logits
            expected = local(torch.cat([ids[:, :10], more], dim=1)).logits[:, 10:]
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
            kept.close()


@pytest.mark.parametrize("wrong", [-100, 128])
def test_unknown_token_ids_are_named_before_they_are_sent(wrong: int, family_swarms: dict[str, PrivateSwarm]) -> None:
    ids, mask = padded(texts(), "right")
    at_padding = ids.masked_fill(mask == 0, wrong)
    with both(family_swarms["llama"]) as (model, _), torch.no_grad():
        assert torch.equal(model(at_padding, attention_mask=mask).logits, model(ids, attention_mask=mask).logits)
        ids[1, 3] = wrong
        with pytest.raises(DataError, match=f"input_ids has {wrong} in row 1; the model knows 0 to 127"):
            model(ids, attention_mask=mask)


def test_heads_of_any_form_classify_and_only_whole_ones_are_saved(
    family_swarms: dict[str, PrivateSwarm], tmp_path: Path
) -> None:
    ids, mask = padded(texts(), "right")
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 2, 4])}
    automatic = AutoDistributedModelForSequenceClassification
    with both(family_swarms["llama"], automatic, num_labels=3) as (model, _), torch.no_grad():
        linear = torch.nn.Linear(64, 5)
        for head in (linear, torch.nn.Sequential(torch.nn.Dropout(0.5), linear), torch.nn.Linear(64, 5, bias=False)):
            model.score = head.eval()
            right = (model(ids, attention_mask=mask).logits.argmax(dim=1) == batch["labels"]).float().mean()
            assert evaluate(model, [batch])["accuracy"] == pytest.approx(float(right))
            if head.__class__ is torch.nn.Sequential or head.bias is not None:
                with pytest.raises(ConfigError, match="Only a linear head without a bias can be saved"):
                    model.requires_grad_(False).save_pretrained(tmp_path)
        forward = model.score.forward
        model.score.forward = lambda hidden: -forward(hidden)
        right = (model(ids, attention_mask=mask).logits.argmax(dim=1) == batch["labels"]).float().mean()
        assert evaluate(model, [batch])["accuracy"] == pytest.approx(float(right))
        model.score = torch.nn.Linear(64, 3, bias=False).requires_grad_(False)
        words = model.get_input_embeddings()
        hook = words.register_forward_hook(lambda *_: None)  # as those of Trainer and PEFT
        state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
        model.save_pretrained(tmp_path / "hooked", state_dict=state)
        with pytest.raises(ConfigError, match="state_dict has another module"):
            model.save_pretrained(tmp_path, state_dict={**state, "module.score.weight": torch.ones(3, 64)})
        hook.remove()
        words.weight.data[5] += 1
        with pytest.raises(ConfigError, match="The embeddings of tokens differ from the base model's"):
            model.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["hooked"]
