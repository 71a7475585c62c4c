"""The classifier: equal to Hugging Face's own models, whether the blocks run here or on a real swarm."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FAMILIES, SwarmClient
from tiny_models import HIDDEN, VOCABULARY

from dist_eval.errors import CheckpointError, ModelOutputError
from dist_eval.inference.forward import checked_answers
from dist_eval.model.backbone import picked
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.petals.client import transport
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server.private import PrivateSwarm

MODES = (None, "ptune", "deep_ptune")
MakeTuned = Callable[..., TunedCheckpoint]


def ragged_batch(lengths: list[int], seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Random texts that also contain id 0, which most tokenizers pad with, at their start, middle and end."""
    ids = torch.randint(0, VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    ids[:, ::3] = 0
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
    return ids, torch.tensor(lengths)


def reference_logits(path: Path, tuned: TunedCheckpoint, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Hugging Face's own sequence classifier, one text at a time, nothing padded."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=tuned.num_labels, dtype=torch.float32
    ).eval()
    model.config.pad_token_id = None  # without it the model takes the last token, which is right for a single text
    model.score.weight.data = tuned.head
    with torch.no_grad():
        rows = [model(input_ids=ids[i : i + 1, :n]).logits for i, n in enumerate(lengths.tolist())]
    return torch.cat(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_local_logits_equal_those_of_hugging_face(
    family: str, tiny_models: dict[str, Path], make_tuned: MakeTuned
) -> None:
    tuned = make_tuned(None, model_type=family)
    ids, lengths = ragged_batch([20, 19, 7, 3, 1])
    logits = load_locally(str(tiny_models[family]), tuned).logits(ids, lengths)
    torch.testing.assert_close(logits, reference_logits(tiny_models[family], tuned, ids, lengths))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_swarm_logits_equal_local_ones(
    family: str,
    mode: str | None,
    tiny_models: dict[str, Path],
    family_swarms: dict[str, PrivateSwarm],
    swarm_client: SwarmClient,
    make_tuned: MakeTuned,
) -> None:
    tuned = make_tuned(mode, model_type=family)
    local, remote = load_locally(str(tiny_models[family]), tuned), swarm_client.classifier(family_swarms[family], tuned)
    for lengths in ([20, 19, 7, 7, 3, 1], [13]):
        ids, true_lengths = ragged_batch(lengths)
        torch.testing.assert_close(remote.logits(ids, true_lengths), local.logits(ids, true_lengths))


def test_the_logits_of_a_text_do_not_depend_on_its_batch(
    family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient, make_tuned: MakeTuned
) -> None:
    remote = swarm_client.classifier(family_swarms["llama"], make_tuned("deep_ptune"))
    ids, lengths = ragged_batch([20, 11, 1])
    together = remote.logits(ids, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = remote.logits(ids[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(alone, together[row : row + 1])


def test_a_request_that_takes_the_streaming_path_equals_the_local_model(
    tiny_models: dict[str, Path],
    family_swarms: dict[str, PrivateSwarm],
    swarm_client: SwarmClient,
    make_tuned: MakeTuned,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned = make_tuned("deep_ptune", hidden=512, layers=1)
    streamed = []
    original = transport.call_stream
    monkeypatch.setattr(transport, "call_stream", lambda *a, **k: (streamed.append(1), original(*a, **k))[1])
    ids, lengths = ragged_batch([123] * 9)  # 9 x (5 + 123) tokens of 512 float32: 2.25 MiB
    local = load_locally(str(tiny_models["wide"]), tuned)
    for chains in (True, False):
        remote = swarm_client.classifier(family_swarms["wide"], tuned, chains=chains)
        torch.testing.assert_close(remote.logits(ids, lengths), local.logits(ids, lengths))
    assert len(streamed) == 2


def test_forwards_are_thread_safe(
    tiny_models: dict[str, Path],
    family_swarms: dict[str, PrivateSwarm],
    swarm_client: SwarmClient,
    make_tuned: MakeTuned,
) -> None:
    tuned = make_tuned("deep_ptune")
    batches = [ragged_batch([5 + seed, 3, 1], seed=seed) for seed in range(12)]
    for classifier in (
        load_locally(str(tiny_models["llama"]), tuned),
        swarm_client.classifier(family_swarms["llama"], tuned),
    ):
        one_by_one = [classifier.logits(*batch) for batch in batches]
        with ThreadPoolExecutor(6) as pool:
            at_once = list(pool.map(classifier.logits, *zip(*batches, strict=True)))
        torch.testing.assert_close(at_once, one_by_one)


class StubbornBackbone:
    """A base model that answers with the given hidden states."""

    config = None

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden
        self.final_norm = torch.nn.Identity()

    def hidden_states(self, *_: Any, rows: torch.Tensor | None = None, **__: Any) -> torch.Tensor:
        return picked(self.hidden, rows)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_an_error(value: float, make_tuned: MakeTuned) -> None:
    hidden = torch.zeros(3, 4, HIDDEN)
    hidden[1, 3] = value
    with pytest.raises(ModelOutputError, match="not finite for 1 of 3 texts"):
        classifier = Classifier(StubbornBackbone(hidden), make_tuned(None))  # type: ignore[arg-type]
        checked_answers(classifier, torch.ones(3, 4).long(), torch.tensor([4, 4, 4]))


def test_an_answer_of_another_shape_is_an_error(make_tuned: MakeTuned) -> None:
    backbone = StubbornBackbone(torch.zeros(3, 4, HIDDEN + 1))
    with pytest.raises(ModelOutputError, match=r"\[3, 65\] instead of \[3, 64\]"):
        Classifier(backbone, make_tuned(None)).logits(torch.ones(3, 4).long(), torch.tensor([4, 4, 4]))  # type: ignore[arg-type]


def test_other_weights_of_the_same_size_are_an_error(
    tmp_path: Path, tiny_models: dict[str, Path], make_tuned: MakeTuned
) -> None:
    from dataclasses import replace

    from transformers import LlamaConfig, LlamaForCausalLM

    from dist_eval.petals.model.loading import base_fingerprint

    original = load_locally(str(tiny_models["llama"]), make_tuned(None)).backbone
    fingerprint = base_fingerprint(original.word_embeddings, original.final_norm)
    tuned = replace(make_tuned(None), base_fingerprint=fingerprint)
    load_locally(str(tiny_models["llama"]), tuned)
    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig.from_pretrained(tiny_models["llama"])).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="other fingerprint"):
        load_locally(str(tmp_path), tuned)


def test_pickled_weights_are_refused(tmp_path: Path, tiny_models: dict[str, Path], make_tuned: MakeTuned) -> None:
    from safetensors.torch import load_file

    shutil.copy(tiny_models["llama"] / "config.json", tmp_path)
    torch.save(load_file(tiny_models["llama"] / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="no weights as safetensors"):
        load_locally(str(tmp_path), make_tuned(None))
