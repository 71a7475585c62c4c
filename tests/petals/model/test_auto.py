"""Opening models on a swarm, using them as transformers' own, and closing them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ForkedSwarm, wait_for
from tiny_models import LAYERS, random_checkpoint, save_tiny_models
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, DynamicCache, LogitsProcessor, PreTrainedTokenizerFast

from dist_eval import (
    AutoDistributedModel,
    AutoDistributedModelForCausalLM,
    AutoDistributedModelForSequenceClassification,
    PrivateSwarm,
)
from dist_eval.errors import CheckpointError, ConfigError, DataError, EvaluationError
from dist_eval.model.backbone import SoftPrompts
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.petals.client.forward import forward
from dist_eval.petals.client.inputs import TokenIds
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.model.generation import InferenceSession

from .conftest import both, padded, texts

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/QmUUNRNa38WHWuRtGCFUrhQgKRTEhtZASKo1VjWGnTzAxL"


@pytest.fixture(scope="module")
def models(family_swarms: dict[str, PrivateSwarm]) -> Iterator[Any]:
    with both(family_swarms["llama"]) as found:
        yield found


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"initial_peers": None}, ConfigError, "Name the swarm"),
        ({"initial_peers": ["127.0.0.1:31337"]}, ConfigError, "is not a peer address"),
        ({"tuning_mode": "ptune"}, ConfigError, "pre_seq_len=0: give both"),
        ({"pre_seq_len": 3}, ConfigError, "tuning_mode=None with pre_seq_len=3"),
        ({"tuning_mode": "lora", "pre_seq_len": 3}, ConfigError, "must be 'ptune' or 'deep_ptune'"),
        ({"num_heads_per_layer": 3}, ConfigError, "no setting num_heads_per_layer"),
        ({"pre_seq_len": "3"}, ConfigError, "pre_seq_len must be a whole number of at least 0, not '3'"),
        ({"timeout": "6"}, ConfigError, "timeout must be a number of at least 0, not '6'"),
        ({"compression": "float8"}, ConfigError, "compression must be none or float16, not 'float8'"),
        ({"dtype": "int8"}, ConfigError, "must be a floating point type"),
        ({"num_labels": 3, "id2label": {0: "no", 1: "yes"}}, CheckpointError, "must name the classes 0 to 2"),
        ({"id2label": ["no", "yes"]}, ConfigError, "id2label must map numbers to names"),
    ],
)
def test_options_that_cannot_be_are_named(
    options: dict[str, Any], error: type[EvaluationError], message: str, tiny_models: dict[str, Path]
) -> None:
    with pytest.raises(error, match=message):
        AutoDistributedModel.from_pretrained(tiny_models["llama"], **{"initial_peers": ADDRESS, **options})


def test_a_checkpoint_is_no_base_model(tmp_path: Path) -> None:
    random_checkpoint("ptune").save(tmp_path)
    with pytest.raises(CheckpointError, match=f"{tmp_path} is not a base model but a tuned checkpoint, of"):
        AutoDistributedModelForCausalLM.from_pretrained(tmp_path, initial_peers=ADDRESS)


def test_a_classifiers_checkpoint_is_for_a_classifier(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    random_checkpoint(None).save(tmp_path)
    with pytest.raises(CheckpointError, match="open it with AutoDistributedModelForSequenceClassification"):
        AutoDistributedModelForCausalLM.from_pretrained(
            tiny_models["llama"], initial_peers=ADDRESS, checkpoint=tmp_path
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tuning_mode": "ptune"}, "tuning_mode is 'ptune', but .*: leave out tuning_mode"),
        ({"pre_seq_len": 99}, "pre_seq_len is 99, but"),
        ({"id2label": {"0": "no", "1": "yes"}}, "num_labels is 2, but|id2label is .0: 'no'"),
        ({"active_adapter": "my/lora"}, "active_adapter is 'my/lora', but 'their/lora' in"),
    ],
)
def test_settings_do_not_replace_those_of_a_checkpoint(
    options: dict[str, Any], message: str, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    dataclasses.replace(random_checkpoint("deep_ptune"), adapter="their/lora").save(tmp_path)
    with pytest.raises(ConfigError, match=message):
        AutoDistributedModelForSequenceClassification.from_pretrained(
            tiny_models["llama"], initial_peers=ADDRESS, checkpoint=tmp_path, **options
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"output_hidden_states": True}, ConfigError, "do not return the hidden states"),
        ({"output_attentions": True}, ConfigError, "do not return the attentions"),
        ({"output_router_logits": True}, ConfigError, "do not return the router logits"),
        ({"past_key_values": DynamicCache()}, ConfigError, "A DynamicCache cannot be used"),
        ({"token_type_ids": torch.ones(1, 3, dtype=torch.long)}, ConfigError, "token_type_ids: a model"),
        ({"attention_mask": torch.ones(1, 1, 3, 3)}, DataError, r"has shape \[1, 1, 3, 3\]"),
        ({"attention_mask": torch.zeros(1, 3)}, DataError, "Row 0 of a batch has no token"),
        ({"attention_mask": torch.tensor([[1, 0, 1]])}, DataError, "masked between tokens"),
    ],
)
def test_what_would_silently_differ_is_refused(
    models: Any, arguments: dict[str, Any], error: type[EvaluationError], message: str
) -> None:
    with pytest.raises(error, match=message):
        models[0](torch.ones(1, 3, dtype=torch.long), **arguments)


def test_a_cache_continues_texts_and_forgets_their_ends(models: Any) -> None:
    model, local = models
    ids = texts()[0][None]
    with torch.no_grad():
        expected = local(ids).logits
        first = model(ids[:, :8], use_cache=True)
        cache = first.cache
        torch.testing.assert_close(model(ids[:, 8:15], cache=cache).logits, expected[:, 8:15], atol=1e-5, rtol=0)
        cache.crop(-4)
        torch.testing.assert_close(model(ids[:, 11:], cache=cache).logits, expected[:, 11:], atol=1e-5, rtol=0)
        with pytest.raises(DataError, match="2 texts cannot continue a batch of 1"):
            model(ids.expand(2, -1), cache=cache)
    cache.close()


@pytest.mark.parametrize("lacking", [{"has_sessions": False}, {"cache_tokens": lambda *_: 60.0}])
def test_without_room_on_servers_texts_are_computed_again(
    lacking: dict[str, Any], models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, local = models
    ids, mask = padded(texts(), "left")
    blocks = model.swarm_base.swarm_blocks
    for name, value in lacking.items():
        monkeypatch.setattr(type(blocks), name, value)
    monkeypatch.setattr(type(blocks), "session", None)  # none is opened
    found, expected = (
        each.generate(ids, attention_mask=mask, max_new_tokens=4, num_beams=2, pad_token_id=0)
        for each in (model, local)
    )
    assert torch.equal(found, expected)


def test_a_session_lasts_for_several_calls(models: Any) -> None:
    model, local = models
    ids, more = texts()[0][None], texts(7)[1][None]
    with model.inference_session(max_length=60) as session:
        parts = [model.generate(ids, max_new_tokens=3, pad_token_id=0)]
        assert session.position == 22
        parts.append(model.generate(max_new_tokens=2, pad_token_id=0))
        parts.append(model.generate(more, max_new_tokens=3, pad_token_id=0, session=session))
    expected = local.generate(ids, max_new_tokens=5, pad_token_id=0)
    expected = local.generate(torch.cat([expected, more], dim=1), max_new_tokens=3, pad_token_id=0)
    assert torch.equal(torch.cat(parts, dim=1), expected) and torch.equal(session.output_ids, expected)
    assert model.active_session is None


def test_a_session_that_goes_back_to_its_beginning_takes_another_text(models: Any) -> None:
    model, local = models
    ids, options = texts()[0][None], {"max_new_tokens": 3, "pad_token_id": 0}
    with model.inference_session(max_length=60) as session:
        model.generate(ids[:, :4], **options)
        session.position = 0
        assert torch.equal(model.generate(ids, **options), local.generate(ids, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "of 1 text cannot continue with 2 beams"),
        ({"num_return_sequences": 3, "do_sample": True}, "of 1 text cannot continue with 3 beams or sequences"),
        ({"prompt_lookup_num_tokens": 2}, "Assisted generation cannot continue texts"),
        ({"use_cache": False}, "use_cache=False: leave it out, or the session"),
        ({"inputs_embeds": torch.ones(1, 2, 64)}, "inputs_embeds cannot continue a session"),
    ],
)
def test_what_cannot_continue_a_session_is_named_and_leaves_it_usable(
    options: dict[str, Any], message: str, models: Any
) -> None:
    model, local = models
    ids, common = texts()[0][None], {"max_new_tokens": 2, "pad_token_id": 0}
    with model.inference_session(max_length=60):
        parts = [model.generate(ids, **common)]
        with pytest.raises(ConfigError, match=message):
            model.generate(None if "inputs_embeds" in options else ids[:, :2], **common, **options)
        parts.append(model.generate(**common))
    assert torch.equal(torch.cat(parts, dim=1), local.generate(ids, max_new_tokens=4, pad_token_id=0))


def test_continuous_batching_is_refused(models: Any) -> None:
    with pytest.raises(ConfigError, match="Continuous batching is not possible on a swarm"):
        models[0].generate_batch([[1, 2, 3]], max_new_tokens=2)


def test_a_session_of_steps_that_is_dropped_frees_its_room(models: Any) -> None:
    base = models[0].swarm_base
    room = base.swarm_blocks.cache_tokens()
    session = InferenceSession(base, 500)
    session.step(torch.ones(2, 3, 64))
    assert base.swarm_blocks.cache_tokens() <= room - 1000
    del session
    gc.collect()
    assert wait_for(lambda: base.swarm_blocks.cache_tokens() == room)


def test_a_session_takes_hidden_states(models: Any) -> None:
    model, local = models
    ids = torch.stack([text[:13] for text in texts()])
    with torch.no_grad(), model.inference_session(max_length=16) as session:
        words = local.get_input_embeddings()(ids)
        first, second = session.step(words[:, :6]), session.step(words[:, 6:9])
        assert session.position == 9
        session.position = 7
        outputs = torch.cat([first, second[:, :1], session.step(words[:, 7:])], dim=1)
        expected = local.model(inputs_embeds=words).last_hidden_state
        torch.testing.assert_close(model.model.norm(outputs), expected, atol=1e-5, rtol=0)
        for inputs, message in (
            (words, "max_length=16 tokens, not 26"),
            (words[:1], r"shape \[3, 'length', 64\]"),
            (words[:, :0], r"not \[3, 0, 64\]"),
        ):
            with pytest.raises(DataError, match=message):
                session.step(inputs)
        with pytest.raises(ConfigError, match="hypo_ids"):
            session.step(words[:, :1], hypo_ids=torch.tensor([1, 0, 2]))
        with pytest.raises(ConfigError, match="The session has texts of step"):
            model.generate(ids, max_new_tokens=1)


def test_deep_prompts_are_sent_with_the_first_step(models: Any, family_swarms: dict[str, PrivateSwarm]) -> None:
    model, tuned = models[0], random_checkpoint("deep_ptune")
    backbone, ids = load_locally(family_swarms["llama"].model, tuned).backbone, texts()[0][None]
    with torch.no_grad(), model.inference_session(max_length=30) as session:
        hidden = model.swarm_base.embedded(ids, tuned.prompts)
        outputs = session.step(hidden, tuned.deep_prompts.unsqueeze(1))
    expected = backbone.hidden_states(ids, SoftPrompts(tuned.prompts, tuned.deep_prompts))
    torch.testing.assert_close(outputs, expected, atol=1e-4, rtol=1e-5)


def test_generating_ends_at_stop_strings(models: Any) -> None:
    local = models[1]
    words = {f"word{number}": number for number in range(2, local.config.vocab_size)}
    words |= {"word0": 0, "abcdef": 1}  # which transformers puts before each token
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "word0")))
    ids, mask = padded(texts(), "left")
    options = {"attention_mask": mask, "max_new_tokens": 6, "pad_token_id": 0}
    whole = local.generate(ids, **options)
    stop = [f"word{token}" for token in whole[:2, -4].tolist()]
    found, expected = (each.generate(ids, **options, stop_strings=stop, tokenizer=tokenizer) for each in models)
    assert torch.equal(found, expected) and not torch.equal(found, whole)


def test_ids_are_sent_while_the_embeddings_are_those_of_servers(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids, mask = padded(texts(), "left")
    with both(family_swarms["llama"]) as models, torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        sent = list[tuple[bool, int]]()

        def noted(requests: Any, given: Any, *further: Any, rows: torch.Tensor, **options: Any) -> torch.Tensor:
            sent.append((isinstance(given, TokenIds), len(rows)))
            return forward(requests, given, *further, rows=rows, **options)

        patch.setattr("dist_eval.petals.client.forward.forward", noted)
        for _ in range(2):
            found, expected = (each(ids, attention_mask=mask, logits_to_keep=2).logits for each in models)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
            for model in models:
                model.get_input_embeddings().weight[ids[0, -1]] += 1
    assert sent == [(True, 6), (False, 6)]


def test_losses_are_those_of_each_problem_type(family_swarms: dict[str, PrivateSwarm]) -> None:
    ids, mask = padded(texts(), "right")
    several = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.5, 1.0, 0.0]])
    settings = {"num_labels": 3, "pad_token_id": 0}
    with both(family_swarms["llama"], AutoDistributedModelForSequenceClassification, **settings) as (model, _):
        local = AutoModelForSequenceClassification.from_pretrained(family_swarms["llama"].model, **settings).eval()
        local.load_state_dict({"score.weight": model.score.weight}, strict=False)
        for problem, labels in (
            ("single_label_classification", torch.tensor([0, 2, 1])),
            ("multi_label_classification", several),
            ("regression", several),
        ):
            for each in (model, local):
                each.config.problem_type = problem
            found, expected = (each(ids, attention_mask=mask, labels=labels) for each in (model, local))
            torch.testing.assert_close(found.loss, expected.loss)
            torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)


def test_generated_texts_are_streamed(models: Any) -> None:
    class Streamer:
        tokens: list[int] = []  # noqa: RUF012

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None: ...

    model, local = models
    ids = texts()[1][None]
    model.generate(ids, max_new_tokens=4, pad_token_id=0, streamer=Streamer())
    assert Streamer.tokens == local.generate(ids, max_new_tokens=4, pad_token_id=0)[0].tolist()


def test_copies_share_the_connection_and_pickles_are_refused(models: Any) -> None:
    ids = texts()[0][None]
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(models[0])(ids).logits, models[0](ids).logits)
    with pytest.raises(ConfigError, match="cannot be pickled"):
        pickle.dumps(models[0].swarm_base.swarm_blocks)


def test_two_models_in_a_process_one_of_them_collected_while_an_event_loop_runs(
    models: Any, family_swarms: dict[str, PrivateSwarm]
) -> None:
    swarm, ids = family_swarms["bloom"], texts()[0][None]
    other = AutoDistributedModelForCausalLM.from_pretrained(
        swarm.model, initial_peers=swarm.initial_peers, dht_prefix=swarm.dht_prefix
    )

    async def in_a_notebook() -> list[torch.Tensor]:
        with torch.no_grad():
            return [each(ids).logits for each in opened]

    opened = [models[0], other]
    logits, node = asyncio.run(in_a_notebook()), other.connection._connection.dht
    opened.clear()
    del other
    gc.collect()
    assert not node.is_alive()
    with torch.no_grad():
        torch.testing.assert_close(models[0](ids).logits, logits[0])


def test_a_forked_process_is_told_to_open_its_own(models: Any) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            models[0](texts()[0][None])
        except ConfigError as error:
            os.write(write, str(error).encode())
            models[0].close()  # does nothing
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as said:
        assert "open the model after the fork" in said.read()
    with torch.no_grad():
        models[0](texts()[0][None])


@pytest.fixture(scope="module", params=["ptune", "deep_ptune"])
def tuned(
    request: pytest.FixtureRequest, family_swarms: dict[str, PrivateSwarm], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A tuned classifier on a swarm, and the same in this process."""
    folder, swarm = tmp_path_factory.mktemp("tuned"), family_swarms["llama"]
    random_checkpoint(request.param).save(folder)
    with both(swarm, AutoDistributedModelForSequenceClassification, checkpoint=folder) as (model, _):
        yield model, load_locally(swarm.model, TunedCheckpoint.load(folder))


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_tuned_classifier(tuned: Any, side: str) -> None:
    model, local = tuned
    rows = texts()
    ids, mask = padded(rows, side)
    lengths = torch.tensor([len(row) for row in rows])
    with torch.no_grad():
        found = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(found, local.logits(padded(rows, "right")[0], lengths), atol=1e-4, rtol=1e-5)
        model.config.pad_token_id = 0
        if side == "right":
            torch.testing.assert_close(model(ids).logits, found, atol=1e-4, rtol=1e-5)


def test_gradients_of_tuned_tensors(tuned: Any) -> None:
    model, local = tuned
    ids, mask = padded(texts(), "right")
    labels = torch.tensor([0, 2, 1])
    model.zero_grad()
    loss = model(ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    names = {
        "head": "score",
        "prompts": "model.prompt_embeddings",
        "deep_prompts": "model.intermediate_prompt_embeddings",
    }
    here = {name: getattr(local.tuned, name) for name in names if getattr(local.tuned, name) is not None}
    here = {name: tensor.clone().requires_grad_() for name, tensor in here.items()}
    scores = Classifier(local.backbone, replace(local.tuned, **here)).scores(ids, mask.sum(dim=1))
    expected = cross_entropy(scores, labels)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert gradients.keys() == {f"{names[name]}.weight" for name in here}
    for name, tensor in here.items():
        own = tensor.grad.transpose(0, 1).flatten(1) if name == "deep_prompts" else tensor.grad
        torch.testing.assert_close(gradients[f"{names[name]}.weight"], own, atol=1e-4, rtol=1e-4)


def test_tuned_tensors_are_saved_as_a_checkpoint(
    tuned: Any, family_swarms: dict[str, PrivateSwarm], tmp_path: Path
) -> None:
    model, local = tuned
    model.save_pretrained(tmp_path)
    saved = TunedCheckpoint.load(tmp_path)
    assert saved.digest() == local.tuned.digest() and saved.base_fingerprint
    assert saved.base_model == model.name_or_path == family_swarms["llama"].model
    assert saved.label_names == local.tuned.label_names


def test_what_was_tuned_with_petals_is_read_from_its_state_dict(tuned: Any, tmp_path: Path) -> None:
    model, _ = tuned
    before = {name: parameter.clone() for name, parameter in model.named_parameters() if parameter.requires_grad}
    torch.save(
        {**{name: tensor + 1 for name, tensor in before.items()}, "lm_head.weight": torch.ones(1)}, tmp_path / "x"
    )
    missing, unexpected = model.load_state_dict(torch.load(tmp_path / "x", weights_only=True), strict=False)
    found = dict(model.named_parameters())
    assert unexpected == ["lm_head.weight"] and not set(missing) & before.keys()
    assert all(torch.equal(found[name], tensor + 1) for name, tensor in before.items())
    model.load_state_dict(before, strict=False)


def test_prompts_of_a_language_model_are_saved_without_a_head(
    family_swarms: dict[str, PrivateSwarm], tmp_path: Path
) -> None:
    swarm, ids = family_swarms["llama"], texts()[0][None]
    with both(swarm, tuning_mode="deep_ptune", pre_seq_len=2) as (model, _), torch.no_grad():
        model.save_pretrained(tmp_path)
        with both(swarm, checkpoint=tmp_path) as (again, _):
            assert torch.equal(model(ids).logits, again(ids).logits)
            texts_of = [each.generate(ids, max_new_tokens=3, pad_token_id=0) for each in (model, again)]
            assert torch.equal(*texts_of)
            assert torch.equal(again.generate(ids, max_new_tokens=3, pad_token_id=0, use_cache=False), texts_of[0])
        with pytest.raises(ConfigError, match="The model is closed"):
            again(ids)
    with pytest.raises(CheckpointError, match="has no classification head"):
        TunedCheckpoint.load(tmp_path)


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[ForkedSwarm]:
    """A swarm of three servers that hold all blocks."""
    folder = save_tiny_models(tmp_path, "llama")["llama"]
    with ForkedSwarm(str(folder), num_blocks=LAYERS, dht_prefix="llama", spans=[(0, LAYERS)] * 3) as swarm:
        yield swarm


def kill_the_busiest(swarm: ForkedSwarm, model: Any) -> None:
    statistics = model.swarm_base.swarm_blocks.requests.router.servers
    requests = {str(peer): server.requests for peer, server in statistics.items()}
    alive = [number for number, server in enumerate(swarm.servers) if server.poll() is None]
    swarm.kill_server(max(alive, key=lambda number: requests.get(swarm.peers[number], 0)))


def test_a_killed_server_changes_no_token_and_no_gradient(replicated: ForkedSwarm) -> None:
    class Killing(LogitsProcessor):
        calls = 0

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 3:
                kill_the_busiest(replicated, model)
            return scores

    ids, mask = padded(texts(), "left")
    options = {"attention_mask": mask, "max_new_tokens": 6, "pad_token_id": 0}
    with both(replicated) as (model, local):
        servers = model.swarm_base.swarm_blocks.requests.servers
        assert wait_for(lambda: len(servers.spans()) == 3 or servers.refresh())
        found = model.generate(ids, **options, logits_processor=[Killing()])
        assert torch.equal(found, local.generate(ids, **options))
        words = [local.get_input_embeddings()(ids).detach().requires_grad_() for _ in range(2)]
        losses = [each(inputs_embeds=own, labels=ids).loss for each, own in zip((model, local), words, strict=True)]
        kill_the_busiest(replicated, model)
        for loss in losses:
            loss.backward()
    torch.testing.assert_close(words[0].grad, words[1].grad, atol=1e-6, rtol=1e-5)


def test_texts_with_other_rotary_embeddings_are_computed_alone(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, local = models
    sent = list[tuple[int, ...]]()

    def noted(requests: Any, given: TokenIds, *further: Any, **options: Any) -> torch.Tensor:
        sent.append(tuple(given.ids.shape))
        return forward(requests, given, *further, **options)

    monkeypatch.setattr("dist_eval.petals.client.forward.forward", noted)
    monkeypatch.setattr(model.swarm_base._rope, "lengths", [15])
    ids, mask = padded(texts(), "left")
    found = model.generate(ids, attention_mask=mask, max_new_tokens=2, pad_token_id=0)
    assert torch.equal(found, local.generate(ids, attention_mask=mask, max_new_tokens=2, pad_token_id=0))
    assert sorted(sent) == [(1, 13), (1, 14), (2, 20), (2, 21)]
