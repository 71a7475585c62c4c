"""Older, pickled exports: the supported forms, and what is refused without being run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Launcher
from torch import nn

from dist_eval import demo
from dist_eval.errors import CheckpointError
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.tuning.exports import convert

HIDDEN, LAYERS, LENGTH, CLASSES = 96, 4, 5, 3
MODEL = str(demo.BASE_MODEL)


@pytest.fixture
def parts() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "prompt_embeddings": nn.Embedding(LENGTH, HIDDEN),
        "intermediate_prompt_embeddings": nn.Embedding(LENGTH, LAYERS * HIDDEN),
        "score": nn.Linear(HIDDEN, CLASSES, bias=False),
    }


def saved(folder: Path, **files: Any) -> list[Path]:
    for name, content in files.items():
        torch.save(content, folder / f"{name}.pt")
    return [folder / f"{name}.pt" for name in files]


def assert_holds(tuned: TunedCheckpoint, parts: dict[str, Any]) -> None:
    prompts, deep, head = (part.weight.detach() for part in parts.values())
    assert tuned.prompts is not None and tuned.deep_prompts is not None
    assert torch.equal(tuned.head, head) and torch.equal(tuned.prompts, prompts)
    assert torch.equal(tuned.deep_prompts, deep.view(LENGTH, LAYERS, HIDDEN).permute(1, 0, 2))


def as_modules_in_files_of_their_own(folder: Path, parts: dict[str, Any]) -> list[Path]:
    return saved(folder, a=parts["score"], b=parts["prompt_embeddings"], c=parts["intermediate_prompt_embeddings"])


def as_state_dicts_named_by_their_files(folder: Path, parts: dict[str, Any]) -> list[Path]:
    return saved(folder, **{name: part.state_dict() for name, part in parts.items()})


def as_one_dictionary_of_modules(folder: Path, parts: dict[str, Any]) -> list[Path]:
    return saved(folder, export={"step": 7, **parts})


def as_one_dictionary_of_tensors(folder: Path, parts: dict[str, Any]) -> list[Path]:
    names = dict(zip(parts, ("prompts", "deep_prompts", "head"), strict=True))
    return saved(folder, export={names[name]: part.weight for name, part in parts.items()})


def as_a_whole_models_state_dict(folder: Path, parts: dict[str, Any]) -> list[Path]:
    tensors = {"model.embed_tokens.weight": torch.ones(31, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    tensors |= {f"model.{name}.weight": parts[name].weight for name in list(parts)[:2]}
    return saved(folder, prompts={"state_dict": {**tensors, "score.weight": parts["score"].weight}})


@pytest.mark.parametrize(
    "export",
    [
        as_modules_in_files_of_their_own,
        as_state_dicts_named_by_their_files,
        as_one_dictionary_of_modules,
        as_one_dictionary_of_tensors,
        as_a_whole_models_state_dict,
    ],
)
def test_exports_become_the_checkpoint_that_they_are(export: Any, parts: dict[str, Any], tmp_path: Path) -> None:
    tuned, left = convert(export(tmp_path, parts), MODEL, ["x", "y", "z"])
    assert_holds(tuned, parts)
    assert left == (
        ["prompts.state_dict.model.embed_tokens.weight", "prompts.state_dict.model.norm.weight"]
        if export is as_a_whole_models_state_dict
        else []
    )
    tuned.save(tmp_path / "tuned")
    assert_holds(TunedCheckpoint.load(tmp_path / "tuned"), parts)
    assert TunedCheckpoint.load(tmp_path / "tuned").label_names == ["x", "y", "z"]


def test_ptune_and_a_head_alone(parts: dict[str, Any], tmp_path: Path) -> None:
    head, prompts = saved(tmp_path, score=parts["score"], prompts=parts["prompt_embeddings"].weight.half())
    assert convert([head], MODEL)[0].tuning_mode is None
    tuned, _ = convert([head, prompts], MODEL)
    assert (tuned.tuning_mode, tuned.label_names) == ("ptune", ["LABEL_0", "LABEL_1", "LABEL_2"])
    assert tuned.prompts is not None and tuned.prompts.dtype == torch.float32


def test_a_head_with_one_output_is_a_regressions(tmp_path: Path) -> None:
    (head,) = saved(tmp_path, score=nn.Linear(HIDDEN, 1, bias=False))
    convert([head], MODEL)[0].save(tmp_path / "tuned")
    assert TunedCheckpoint.load(tmp_path / "tuned").problem is REGRESSION


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


def test_code_in_a_pickle_is_not_run(parts: dict[str, Any], tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    files = saved(tmp_path, evil={"score": parts["score"], "more": Evil(proof)})
    with pytest.raises(CheckpointError, match=r"evil\.pt contains an object of .*running the file's code.*state_dict"):
        convert(files, MODEL)
    assert not proof.exists()
    torch.load(files[0], weights_only=False)
    assert proof.exists(), "the file is harmless, and the test proves nothing"


def with_bias(parts: dict[str, Any]) -> dict[str, Any]:
    return {"score": nn.Linear(HIDDEN, CLASSES)}


WRONG = [
    (lambda parts: {"prompts": parts["prompt_embeddings"]}, "The tensors include no head"),
    (with_bias, "The head has a bias"),
    (
        lambda parts: {"score": parts["score"], "deep_prompts": parts["intermediate_prompt_embeddings"]},
        "no prompts before",
    ),
    (lambda parts: {"score": nn.Linear(7, CLASSES, bias=False)}, r"\[3, 7\], but .* needs \[3, 96\]"),
    (lambda parts: {"score": parts["score"], "more": {"head": parts["score"].weight}}, "is a second score.weight"),
    (lambda parts: {"score": torch.full((CLASSES, HIDDEN), torch.nan)}, "not finite"),
]


@pytest.mark.parametrize(("make", "words"), WRONG)
def test_tensors_that_form_no_checkpoint_are_an_error(
    make: Any, words: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        convert(saved(tmp_path, export=make(parts)), MODEL)


def peft_model(kind: str) -> Any:
    """A classifier with an adapter of PEFT in its layers, and a head of its own."""
    import peft
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=31,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_labels=CLASSES,
    )
    modules: dict[str, Any] = {"task_type": "SEQ_CLS", "target_modules": ["q_proj", "v_proj"]}
    adapters = {
        "LORA": lambda: peft.LoraConfig(r=2, **modules),
        "IA3": lambda: peft.IA3Config(feedforward_modules=[], **modules),
        "OFT": lambda: peft.OFTConfig(oft_block_size=8, **modules),
    }
    return peft.get_peft_model(LlamaForSequenceClassification(config), adapters[kind]())


@pytest.mark.parametrize("kind", ["LORA", "IA3", "OFT"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole model", "adapter"])
def test_a_classifier_with_an_adapter_is_refused_instead_of_losing_it(kind: str, whole: bool, tmp_path: Path) -> None:
    import peft

    model = peft_model(kind)
    tensors = model.state_dict() if whole else peft.get_peft_model_state_dict(model)
    with pytest.raises(
        CheckpointError, match=rf"export\.pt: .*{kind.lower()}_.* belongs to an adapter.*merge_and_unload"
    ):
        convert(saved(tmp_path, export=tensors), MODEL)


@pytest.mark.parametrize("kind", ["LORA", "IA3"])
def test_a_folder_of_peft_as_checkpoint_says_what_it_is(kind: str, tmp_path: Path) -> None:
    peft_model(kind).save_pretrained(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=rf"adapter holds an adapter \({kind}\) of PEFT.*merge_and_unload"):
        TunedCheckpoint.load(tmp_path / "adapter")


def test_a_module_that_was_tampered_with_is_an_error(parts: dict[str, Any], tmp_path: Path) -> None:
    parts["score"]._parameters = {"weight": "none"}
    with pytest.raises(CheckpointError, match="a Linear without a weight"):
        convert(saved(tmp_path, export=parts), MODEL)


def test_a_bias_of_zeros_is_none(parts: dict[str, Any], tmp_path: Path) -> None:
    head = nn.Linear(HIDDEN, CLASSES)
    nn.init.zeros_(head.bias)
    assert torch.equal(convert(saved(tmp_path, head=head), MODEL)[0].head, head.weight)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_pickle_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "score.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"score\.pt was not written by torch\.save, or is damaged"):
        convert([tmp_path / "score.pt"], MODEL)
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        convert([tmp_path / "nowhere.pt"], MODEL)


def test_as_a_command(parts: dict[str, Any], launcher: Launcher, tmp_path: Path) -> None:
    files = [str(path) for path in saved(tmp_path, export=parts)]
    command = ["-m", "dist_eval.tuning.convert", *files, "--model", MODEL, "--output", str(tmp_path / "tuned")]
    first = launcher.run(*command)
    assert first.returncode == 0, first.stderr
    assert "3 classes, tuning_mode deep_ptune, 5 prompt tokens" in first.stdout
    assert_holds(TunedCheckpoint.load(tmp_path / "tuned"), parts)
    again = launcher.run(*command)
    assert again.returncode == 1
    assert "already exists. Choose another --output." in again.stderr
    assert "Traceback" not in again.stderr
