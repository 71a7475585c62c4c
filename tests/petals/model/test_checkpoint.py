"""Tuned checkpoints: saving and loading round-trip, and every kind of damage is reported."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from samples import PEER
from tiny_models import edited_tensors

from dist_eval import demo
from dist_eval.errors import CheckpointError
from dist_eval.petals.base_model.problem_types import PROBLEMS, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.petals.model.checkpoint import TunedCheckpoint, fingerprint

HIDDEN, LAYERS, LENGTH, CLASSES = 4, 3, 2, 12
FAMILIES = {"llama": "model.", "bloom": "transformer.", "falcon": "transformer.", "mixtral": "model."}
MODES = (None, "ptune", "deep_ptune")
all_modes = pytest.mark.parametrize("mode", MODES)
all_families = pytest.mark.parametrize("family", FAMILIES)


def tuned(mode: str | None = "deep_ptune", family: str = "llama") -> TunedCheckpoint:
    generator = torch.Generator().manual_seed(0)
    return TunedCheckpoint(
        head=torch.randn(CLASSES, HIDDEN, generator=generator),
        prompts=torch.randn(LENGTH, HIDDEN, generator=generator) if mode else None,
        deep_prompts=torch.randn(LAYERS, LENGTH, HIDDEN, generator=generator) if mode == "deep_ptune" else None,
        label_names=[f"class {number}" for number in range(CLASSES)],
        architecture={"model_type": family, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": 31},
        base_model="some/base",
        base_fingerprint="f" * 64,
    )


def base_config(**others: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**{**tuned().architecture, "num_attention_heads": 2, **others})


def edit_config(folder: Path, **changes: Any) -> None:
    """Changes fields of config.json; those set to `...` are removed."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_tensor(folder: Path, ending: str, change: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
    """Changes the tensor with this name's ending, or removes it."""
    with edited_tensors(folder) as tensors:
        name = next(name for name in tensors if name == ending or name.endswith("." + ending))
        tensor = tensors.pop(name)
        if change is not None:
            tensors[name] = change(tensor.clone()).contiguous()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a good checkpoint with deep prompts."""
    tuned().save(tmp_path / "tuned")
    return tmp_path / "tuned"


def error_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        TunedCheckpoint.load(folder)
    return str(caught.value)


@all_modes
@all_families
def test_saving_and_loading_round_trip(tmp_path: Path, mode: str | None, family: str) -> None:
    saved = tuned(mode, family)
    saved.save(tmp_path / "new" / "folder")

    loaded = TunedCheckpoint.load(str(tmp_path / "new" / "folder"))

    for name in ("head", "prompts", "deep_prompts"):
        before, after = getattr(saved, name), getattr(loaded, name)
        assert (before is None and after is None) or torch.equal(before, after)
    for name in ("label_names", "architecture", "base_model", "base_fingerprint", "tuning_mode", "pre_seq_len"):
        assert getattr(loaded, name) == getattr(saved, name)
    assert loaded.folder == tmp_path / "new" / "folder"
    assert loaded.digest() == saved.digest()


@pytest.mark.parametrize(("mode", "length"), [(None, 0), ("ptune", LENGTH), ("deep_ptune", LENGTH)])
def test_mode_and_sizes_follow_from_the_tensors(mode: str | None, length: int) -> None:
    assert (tuned(mode).tuning_mode, tuned(mode).pre_seq_len, tuned(mode).num_labels) == (mode, length, CLASSES)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_problem_type_round_trips(tmp_path: Path, name: str) -> None:
    dataclasses.replace(tuned(), problem=PROBLEMS[name]).save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["problem_type"] == name
    assert TunedCheckpoint.load(tmp_path).problem is PROBLEMS[name]


@pytest.mark.parametrize(("classes", "problem"), [(CLASSES, SINGLE_LABEL), (1, REGRESSION)])
def test_a_missing_problem_type_is_that_of_transformers(tmp_path: Path, classes: int, problem: Problem) -> None:
    some = dataclasses.replace(tuned(), head=tuned().head[:classes], label_names=tuned().label_names[:classes])
    some.save(tmp_path)
    edit_config(tmp_path, problem_type=None)
    assert TunedCheckpoint.load(tmp_path).problem is problem


@all_families
def test_tensors_have_the_names_and_the_layout_of_petals(tmp_path: Path, family: str) -> None:
    checkpoint = tuned("deep_ptune", family)
    checkpoint.save(tmp_path)
    tensors, prefix = load_file(tmp_path / "model.safetensors"), FAMILIES[family]
    deep = f"{prefix}intermediate_prompt_embeddings.weight"
    assert set(tensors) == {"score.weight", f"{prefix}prompt_embeddings.weight", deep}
    for layer in range(LAYERS):
        for position in range(LENGTH):
            stored = tensors[deep][position, layer * HIDDEN : (layer + 1) * HIDDEN]
            assert torch.equal(stored, checkpoint.deep_prompts[layer, position])  # type: ignore[index]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_of_any_precision_are_loaded_in_single_precision(folder: Path, dtype: torch.dtype) -> None:
    for name in ("score.weight", "prompt_embeddings.weight", "intermediate_prompt_embeddings.weight"):
        edit_tensor(folder, name, lambda tensor: tensor.to(dtype))
    loaded = TunedCheckpoint.load(folder)
    assert torch.equal(loaded.head, tuned().head.to(dtype).float())
    assert {loaded.head.dtype, loaded.prompts.dtype, loaded.deep_prompts.dtype} == {torch.float32}  # type: ignore


def test_tensors_being_tuned_can_be_saved(tmp_path: Path) -> None:
    training = dataclasses.replace(tuned("ptune"), head=tuned().head.double().requires_grad_())
    training.save(tmp_path)
    assert torch.equal(TunedCheckpoint.load(tmp_path).head, tuned().head)


def test_the_names_of_classes_may_be_missing(folder: Path) -> None:
    edit_config(folder, id2label=...)
    assert TunedCheckpoint.load(folder).label_names == [f"LABEL_{number}" for number in range(CLASSES)]


@pytest.mark.parametrize("missing", [..., None])
def test_the_number_of_classes_may_be_missing(folder: Path, missing: Any) -> None:
    edit_config(folder, num_labels=missing)
    assert TunedCheckpoint.load(folder).label_names == tuned().label_names


@pytest.mark.parametrize("missing", [..., None])
@pytest.mark.parametrize("classes", [1, 2, CLASSES])
def test_number_and_names_of_classes_follow_from_the_head(folder: Path, missing: Any, classes: int) -> None:
    edit_config(folder, num_labels=missing, id2label=missing)
    edit_tensor(folder, "score.weight", lambda tensor: tensor[:classes])
    loaded = TunedCheckpoint.load(folder)
    assert loaded.label_names == [f"LABEL_{number}" for number in range(classes)]
    assert loaded.num_labels == classes


def test_blooms_older_names_of_sizes_are_read(folder: Path) -> None:
    edit_config(folder, model_type="bloom", hidden_size=..., num_hidden_layers=..., n_embed=HIDDEN, n_layer=LAYERS)
    loaded = TunedCheckpoint.load(folder)
    assert loaded.architecture == {**tuned(family="bloom").architecture}


@pytest.mark.parametrize("mode", ["none", "", None, ...])
@pytest.mark.parametrize("length", [0, LENGTH, None, ...])
def test_no_tuning_mode_means_only_the_head(tmp_path: Path, mode: Any, length: Any) -> None:
    tuned(None).save(tmp_path)
    edit_config(tmp_path, tuning_mode=mode, pre_seq_len=length)
    loaded = TunedCheckpoint.load(tmp_path)
    assert (loaded.tuning_mode, loaded.pre_seq_len, loaded.prompts) == (None, 0, None)


@all_families
def test_only_the_tuned_tensors_of_a_whole_model_are_loaded(tmp_path: Path, family: str) -> None:
    checkpoint = tuned("deep_ptune", family)
    checkpoint.save(tmp_path)
    with edited_tensors(tmp_path) as tensors:
        tensors["model.embed_tokens.weight"] = torch.full((31, HIDDEN), torch.nan)
    edit_config(tmp_path, initial_peers=[PEER], dht_prefix="base-hf", architectures=["Distributed"])

    loaded = TunedCheckpoint.load(tmp_path)
    loaded.save(tmp_path / "again")

    assert loaded.digest() == checkpoint.digest()
    for file in (tmp_path / "again").iterdir():
        assert b"p2p" not in file.read_bytes()
    assert "initial_peers" not in json.loads((tmp_path / "again" / "config.json").read_text())


@pytest.mark.parametrize("mode", ["none", "", None, ...])
def test_prompts_without_a_tuning_mode_are_named(folder: Path, mode: Any) -> None:
    edit_config(folder, tuning_mode=mode)
    message = error_of(folder)
    assert message.startswith(f"The checkpoint {folder} holds the tuned tensor ")
    assert "prompt_embeddings.weight'" in message
    assert message.endswith("but tuning_mode none in config.json does not use it.")


def test_deep_prompts_that_the_tuning_mode_does_not_use_are_named(folder: Path) -> None:
    edit_config(folder, tuning_mode="ptune")
    assert error_of(folder) == (
        f"The checkpoint {folder} holds the tuned tensor 'intermediate_prompt_embeddings.weight', but tuning_mode "
        "ptune in config.json does not use it."
    )


@all_modes
@pytest.mark.parametrize(
    "name",
    [
        "score.bias",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.1.mlp.lora_B.default.weight",
        "transformer.h.0.mlp.lora_embedding_A",
    ],
)
def test_a_tuned_tensor_that_cannot_be_used_is_named(tmp_path: Path, mode: str | None, name: str) -> None:
    tuned(mode).save(tmp_path)
    with edited_tensors(tmp_path) as tensors:
        tensors[name] = torch.zeros(CLASSES)
    assert error_of(tmp_path) == (
        f"The checkpoint {tmp_path} holds the tuned tensor {name!r}, but dist_eval cannot use it."
    )


def save_with_transformers(folder: Path, *, shard: str = "10GB", **config: Any) -> torch.Tensor:
    """Writes a classifier as transformers does; returns the weight of its head."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": HIDDEN, "intermediate_size": 8, "num_hidden_layers": LAYERS}
    model = LlamaForSequenceClassification(LlamaConfig(**sizes, num_attention_heads=2, **config))
    model.save_pretrained(folder, max_shard_size=shard)
    return model.score.weight.detach()


NAMED, COUNTED = ["neg", "neutral", "pos"], ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize("shard", ["10GB", "1KB"])
@pytest.mark.parametrize(
    ("options", "names"),
    [({}, COUNTED[:2]), ({"num_labels": 3}, COUNTED), ({"id2label": dict(enumerate(NAMED))}, NAMED)],
)
def test_a_classifier_that_transformers_saved_is_loaded(
    tmp_path: Path, options: dict[str, Any], names: list[str], shard: str
) -> None:
    head = save_with_transformers(tmp_path, shard=shard, **options)
    assert (tmp_path / "model.safetensors").exists() == (shard == "10GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard != "10GB")

    loaded = TunedCheckpoint.load(tmp_path)

    assert torch.equal(loaded.head, head)
    assert (loaded.tuning_mode, loaded.prompts, loaded.deep_prompts) == (None, None, None)
    assert loaded.label_names == names
    assert loaded.architecture == tuned().architecture


def shard(folder: Path) -> dict[str, str]:
    """Spreads the tensors over one file each, with an index, as transformers does; returns file by tensor."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {
        name: f"model-{number:05}-of-{len(tensors):05}.safetensors" for number, name in enumerate(sorted(tensors), 1)
    }
    for name, file in files.items():
        save_file({name: tensors[name]}, folder / file)
    write_index(folder, {"metadata": {"total_size": 1}, "weight_map": files})
    return files


def write_index(folder: Path, content: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def test_tensors_of_several_files_are_loaded(folder: Path) -> None:
    shard(folder)
    assert TunedCheckpoint.load(folder).digest() == tuned().digest()


def test_a_single_file_takes_precedence_over_an_index(folder: Path) -> None:
    write_index(folder, {"weight_map": {"score.weight": "model-00001-of-00002.safetensors"}})
    assert TunedCheckpoint.load(folder).digest() == tuned().digest()


def test_a_missing_one_of_several_files_is_named(folder: Path) -> None:
    missing = shard(folder)["score.weight"]
    (folder / missing).unlink()
    assert error_of(folder) == f"The checkpoint {folder} has no {missing}."


def test_a_damaged_one_of_several_files_is_named(folder: Path) -> None:
    damaged = folder / shard(folder)["score.weight"]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert error_of(folder).startswith(f"{damaged} is damaged or not a safetensors file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"caf\xe9",
        b"{}",
        b"[]",
        b"null",
        b"7",
        b'{"weight_map": []}',
        b'{"weight_map": null}',
        b'{"weight_map": {"score.weight": 7}}',
        b'{"weight_map": {"score.weight": null}}',
        b'{"weight_map": {"score.weight": []}}',
        b'{"weight_map": {"score.weight": "a.safetensors", "other.weight": 7}}',
    ],
)
def test_a_damaged_index_is_named(folder: Path, content: bytes) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").write_bytes(content)
    assert "model.safetensors.index.json" in error_of(folder)


def test_an_index_of_pickles_is_not_followed(folder: Path, tmp_path: Path) -> None:
    shard(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(CreatesFile(tmp_path / "executed")))
    write_index(folder, {"weight_map": {"score.weight": "pytorch_model.bin"}})
    assert str(folder) in error_of(folder)
    assert not (tmp_path / "executed").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert error_of(tmp_path / "nowhere") == f"The checkpoint folder {tmp_path / 'nowhere'} does not exist."
    fetched = "If it is a name on a hub: `hf download org/tuned --local-dir FOLDER`."
    assert error_of(Path("org/tuned")) == f"The checkpoint folder org/tuned does not exist. {fetched}"


def test_a_missing_config_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert error_of(folder) == f"The checkpoint {folder} has no config.json."


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b'"text"', b'{"a": "caf\xe9"}', b"null"])
def test_a_damaged_config_is_named(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    assert error_of(folder).startswith(f"{folder / 'config.json'} ")


@pytest.mark.parametrize("field", ["model_type", "hidden_size", "num_hidden_layers"])
def test_a_config_that_does_not_determine_the_base_is_named(folder: Path, field: str) -> None:
    edit_config(folder, **{field: ...})
    assert f"config.json lacks '{field}'" in error_of(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tuning_mode": "lora"}, "tuning_mode 'lora' is none of none, ptune, deep_ptune."),
        ({"problem_type": "ranking"}, "problem_type must be one of single_label_classification, multi_"),
        ({"pre_seq_len": 0}, "pre_seq_len"),
        ({"pre_seq_len": ...}, "pre_seq_len"),
        ({"id2label": {str(number): "x" for number in range(CLASSES) if number != 5}}, "id2label"),
        ({"id2label": [f"class {number}" for number in range(CLASSES)]}, "id2label"),
    ],
    ids=["unknown mode", "unknown problem", "no prompts", "length missing", "a hole", "a list of names"],
)
def test_a_config_that_contradicts_itself_is_named(folder: Path, changes: dict[str, Any], words: str) -> None:
    edit_config(folder, **changes)
    message = error_of(folder)
    assert str(folder / "config.json") in message
    assert words in message


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": str(CLASSES)},
        {"num_labels": float(CLASSES)},
        {"num_labels": [CLASSES], "id2label": ...},
        {"num_labels": 2_000_000_000, "id2label": ...},
        {"pre_seq_len": str(LENGTH)},
        {"hidden_size": str(HIDDEN)},
        {"num_hidden_layers": str(LAYERS)},
        {"id2label": 7},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_config_with_a_field_of_the_wrong_type_is_named(folder: Path, changes: dict[str, Any]) -> None:
    edit_config(folder, **changes)
    message = error_of(folder)
    assert str(folder) in message
    assert "config.json" in message


def test_missing_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert error_of(folder) == f"The checkpoint {folder} has no model.safetensors."


class CreatesFile:
    """An object that, unpickled, creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter.pt", "model.pkl"])
def test_a_pickle_is_named_and_not_read(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(CreatesFile(tmp_path / "executed")))
    assert f"{name} is a pickle, which could run code and is not read." in error_of(folder)
    assert not (tmp_path / "executed").exists()


def test_a_pickle_under_another_name_is_not_read(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(CreatesFile(tmp_path / "executed")))
    assert error_of(folder).startswith(f"{folder / 'model.safetensors'} is damaged or not a safetensors file")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_named(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert error_of(folder).startswith(f"{path} is damaged or not a safetensors file")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("score.weight", "no classification head"),
        ("prompt_embeddings.weight", "no prompts"),
        ("intermediate_prompt_embeddings.weight", "no deep prompts"),
    ],
)
def test_a_missing_tensor_is_named(folder: Path, name: str, what: str) -> None:
    edit_tensor(folder, name, None)
    message = error_of(folder)
    assert message.startswith(f"The checkpoint {folder} has {what}: it lacks '{name}'")
    assert (", which tuning_mode deep_ptune needs." in message) == (name != "score.weight")


@pytest.mark.parametrize(
    ("name", "change", "shapes"),
    [
        ("score.weight", lambda t: t[:-1], "[11, 4], but config.json asks for [12, 4]"),
        ("score.weight", lambda t: t.T, "[4, 12], but config.json asks for [12, 4]"),
        ("score.weight", lambda t: t.sum(), "[], but config.json asks for [12, 4]"),
        ("prompt_embeddings.weight", lambda t: t[:1], "[1, 4], but config.json asks for [2, 4]"),
        ("intermediate_prompt_embeddings.weight", lambda t: t[:, :-4], "[2, 8], but config.json asks for [2, 12]"),
        ("intermediate_prompt_embeddings.weight", lambda t: t.view(6, 4), "[6, 4], but config.json asks for [2, 12]"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(
    folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor], shapes: str
) -> None:
    edit_tensor(folder, name, change)
    assert error_of(folder) == f"{folder / 'model.safetensors'}: {name} has shape {shapes}."


@pytest.mark.parametrize("name", ["score.weight", "prompt_embeddings.weight", "intermediate_prompt_embeddings.weight"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_tensor_with_a_value_that_is_not_finite_is_named(folder: Path, name: str, value: float) -> None:
    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        tensor[-1, -1] = value
        return tensor

    edit_tensor(folder, name, spoil)
    assert error_of(folder) == f"{folder / 'model.safetensors'}: {name} holds values that are not finite."


def test_the_right_base_is_accepted() -> None:
    tuned().require_base("some/base", base_config(), "f" * 64)
    tuned().require_base("some/base", base_config(other=1))


@pytest.mark.parametrize(
    ("field", "value"), [("model_type", "bloom"), ("hidden_size", 8), ("num_hidden_layers", 4), ("vocab_size", 32)]
)
def test_a_base_of_another_size_is_named(folder: Path, field: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        TunedCheckpoint.load(folder).require_base("other/base", base_config(**{field: value}))
    message = str(caught.value)
    assert f"{folder} was tuned for a base model with {field} {tuned().architecture[field]}" in message
    assert f"other/base has {value}" in message
    assert message.endswith("the base model that it was tuned on: some/base.")


def test_a_base_that_lacks_a_field_is_another_base() -> None:
    with pytest.raises(CheckpointError, match="hidden_size 4, but other/base has None"):
        tuned().require_base("other/base", SimpleNamespace(model_type="llama"))


def test_a_base_with_other_weights_is_named(folder: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        TunedCheckpoint.load(folder).require_base("other/base", base_config(), "0" * 64)
    message = str(caught.value)
    assert f"{folder} was tuned on other weights than those of other/base" in message
    assert "some/base" in message


def test_a_checkpoint_without_a_fingerprint_fits_any_weights() -> None:
    anonymous = dataclasses.replace(tuned(), base_fingerprint=None)
    anonymous.require_base("other/base", base_config(), "0" * 64)


def test_fingerprints_depend_on_values_shapes_and_order() -> None:
    one, two = torch.arange(6.0), torch.ones(2)
    groups = [[one, two], [two, one], [one], [one.view(2, 3), two], [one + 1e-6, two], [-one, two]]
    assert len({fingerprint(group) for group in groups}) == len(groups)


def test_fingerprints_do_not_depend_on_storage() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    expected = fingerprint([tensor])
    assert fingerprint([tensor.to(torch.bfloat16)]) == expected
    assert fingerprint([tensor.T.contiguous().T]) == expected
    assert fingerprint(iter([tensor.clone().requires_grad_()])) == expected


@pytest.mark.parametrize("name", ["head", "prompts", "deep_prompts"])
def test_a_change_of_any_tensor_changes_the_digest(name: str) -> None:
    changed = getattr(tuned(), name).clone()
    changed.view(-1)[-1] += 1e-3
    assert dataclasses.replace(tuned(), **{name: changed}).digest() != tuned().digest()


def test_the_shipped_checkpoint_fits_the_shipped_base() -> None:
    from transformers import AutoConfig

    shipped = TunedCheckpoint.load(demo.CHECKPOINT)
    shipped.require_base(str(demo.BASE_MODEL), AutoConfig.from_pretrained(demo.BASE_MODEL))
    assert shipped.tuning_mode == "deep_ptune"
    assert shipped.label_names == list("0123456789")
