"""Complete Hugging Face classifiers: the logits of a text do not depend on its batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCABULARY, edited_tensors

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.token_file import with_types
from dist_eval.errors import CheckpointError, ConfigError, DataError, ModelOutputError
from dist_eval.evaluation.inputs import write_dataset
from dist_eval.inference.forward import checked_answers
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.pretrained_classifier import PretrainedClassifier, load_full_model, local_device
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import DataOptions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL

CPU = torch.device("cpu")
SMALL = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDTHS = {"hidden_size": 16, "intermediate_size": 24}
FAMILIES: dict[str, dict[str, Any]] = {
    "BertConfig": {**SMALL, **WIDTHS, "max_position_embeddings": 40},
    "RobertaConfig": {**SMALL, **WIDTHS, "max_position_embeddings": 42, "pad_token_id": 1},
    "DistilBertConfig": {"vocab_size": VOCABULARY, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2},
    "DebertaV2Config": {**SMALL, **WIDTHS, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "LlamaConfig": {**SMALL, **WIDTHS, "pad_token_id": 0},
    "GPT2Config": {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "XLNetConfig": {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24},
    "BigBirdConfig": {**SMALL, **WIDTHS, "block_size": 2, "num_random_blocks": 1, "max_position_embeddings": 40},
    "ReformerConfig": {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "attention_head_size": 8,
        "feed_forward_size": 24,
        "attn_layers": ["local", "lsh"],
        "num_buckets": 2,
        "is_decoder": False,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "max_position_embeddings": 32,
        "axial_pos_shape": [4, 8],
        "axial_pos_embds_dim": [8, 8],
    },
    "LongformerConfig": {**SMALL, **WIDTHS, "attention_window": 8, "pad_token_id": 1, "max_position_embeddings": 66},
}
HALF = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
END = 2
WITH_END_TOKENS: dict[str, dict[str, Any]] = {
    "BartConfig": {**HALF, "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
    "T5Config": {
        "vocab_size": VOCABULARY,
        "d_model": 16,
        "d_ff": 24,
        "d_kv": 8,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
        "eos_token_id": END,
    },
    "CTRLConfig": {"vocab_size": VOCABULARY, "n_embd": 16, "dff": 24, "n_layer": 1, "n_head": 2, "pad_token_id": None},
}
SETTINGS = {
    **FAMILIES,
    **WITH_END_TOKENS,
    "MptConfig": {"vocab_size": VOCABULARY, "d_model": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 40},
}


def saved(folder: Path, family: str, **changes: Any) -> Path:
    """A tiny random classifier; values are spread, so that mistakes show in its answers."""
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, family)(**{**SETTINGS[family], "num_labels": 3, **changes})
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


def full(folder: Path) -> PretrainedClassifier:
    from transformers import AutoConfig

    return PretrainedClassifier.from_config(str(folder), AutoConfig.from_pretrained(folder))


def alone(folder: Path, ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """The family's own answers, one text at a time."""
    from transformers import AutoModelForSequenceClassification

    def of_text(input_ids: torch.Tensor) -> torch.Tensor:
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()  # anew: some remember other texts
        torch.manual_seed(0)
        return model(input_ids=input_ids).logits

    with torch.no_grad():
        return torch.cat([of_text(ids[row : row + 1, :n]) for row, n in enumerate(lengths)])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_a_text_do_not_depend_on_its_batch(family: str, tmp_path: Path) -> None:
    folder, lengths = saved(tmp_path, family), [19, 19, 7, 7, 7, 3, 1]
    ids = torch.randint(3, VOCABULARY, (len(lengths), 19), generator=torch.Generator().manual_seed(2))
    ids[:, ::4] = FAMILIES[family].get("pad_token_id", 0) if "GPT2" in family or "Llama" in family else 5
    expected = alone(folder, ids, lengths)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
    classifier = load_full_model(full(folder), CPU)
    logits = classifier.answer(ids, torch.tensor(lengths))["logits"]
    torch.testing.assert_close(logits, expected)
    again = classifier.answer(ids[:3], torch.tensor(lengths[:3]))["logits"]
    torch.testing.assert_close(again, expected[:3])
    assert logits.dtype == torch.float32
    assert (logits.std(dim=0) > 1e-3).all(), "all texts get the same answer"


@pytest.mark.parametrize("family", ["LlamaConfig", "GPT2Config"])
def test_a_text_ends_where_the_model_itself_finds_its_end(family: str, tmp_path: Path) -> None:
    """Of texts that end with the padding id, alone and padded: the model was trained on what stands before it."""
    from transformers import AutoModelForSequenceClassification

    folder, lengths = saved(tmp_path, family, pad_token_id=END, eos_token_id=END), [19, 19, 7, 7, 3]
    ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(2))
    for row, length in enumerate(lengths):
        ids[row, length - 1 :] = END
    logits = load_full_model(full(folder), CPU).answer(ids, torch.tensor(lengths))["logits"]
    torch.testing.assert_close(logits, alone(folder, ids, lengths))
    mask = (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        padded = AutoModelForSequenceClassification.from_pretrained(folder)(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(logits, padded, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", WITH_END_TOKENS)
def test_texts_that_a_head_does_not_take_together_go_alone(family: str, tmp_path: Path) -> None:
    folder, lengths = saved(tmp_path, family), [9, 9, 9, 6, 6]
    ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(2))
    for row, length in enumerate(lengths):
        ids[row, length - 1 :] = END
    ids[1, 4] = END  # as if the text said so
    logits = load_full_model(full(folder), CPU).answer(ids, torch.tensor(lengths))["logits"]
    torch.testing.assert_close(logits, alone(folder, ids, lengths))


def with_tokenizer(folder: Path, *, class_last: bool) -> Any:
    """Puts a tokenizer of letters into a model's folder: BERT's way of making inputs, or XLNet's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<cls>", "<sep>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    begin, end = ("", " <cls>:2") if class_last else ("<cls>:0 ", "")
    backend.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A:0 <sep>:0{end}",
        pair=f"{begin}$A:0 <sep>:0 $B:1 <sep>:1{end}",
        special_tokens=[("<cls>", 1), ("<sep>", 2)],
    )
    special = {"pad_token": "<pad>", "cls_token": "<cls>", "sep_token": "<sep>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, padding_side="left" if class_last else "right", **special
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("columns", [["a"], ["a", "b"]])
@pytest.mark.parametrize("family", ["BertConfig", "XLNetConfig", "DebertaV2Config", "GPT2Config"])
def test_a_text_gets_the_inputs_that_its_own_tokenizer_makes(family: str, columns: list[str], tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    folder, max_length = saved(tmp_path / "model", family, pad_token_id=0), 24
    tokenizer = with_tokenizer(folder, class_last=family == "XLNetConfig")
    rows = [("abc", "xy"), ("hello", "world"), ("a", "bcd"), ("q" * 30, "r" * 20), ("abc", "zzz"), ("ab", "cyx")]
    data_file = tmp_path / "pairs.csv"
    data_file.write_text("a,b,label\n" + "".join(f"{a},{b},{i % 3}\n" for i, (a, b) in enumerate(rows)))
    config = EvaluationConfig(
        model=str(folder), dataset=str(data_file), backend="local", text_column=columns, max_length=max_length
    )
    target = full(folder)
    (tmp_path / "data").mkdir()
    write_dataset(tmp_path / "data", config.select(DataOptions), BaseModelSpec.read(config, target), target)
    ids, lengths = map(torch.from_numpy, TokenizedDataset(tmp_path / "data").padded(np.arange(len(rows))))
    logits = load_full_model(target, CPU).answer(ids, lengths)["logits"]

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for row, texts in enumerate(rows):
        inputs = tokenizer(*texts[: len(columns)], truncation=True, max_length=max_length, return_tensors="pt")
        assert inputs["input_ids"].shape[1] == lengths[row]
        with torch.no_grad():
            torch.testing.assert_close(logits[row], model(**inputs).logits[0])


def test_a_tokenizer_with_more_token_types_than_the_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="token type 2, but the model knows only 2 types"):
        with_types(np.array([5, 6]), np.array([0, 2]), 2)
    assert full(saved(tmp_path / "a", "DistilBertConfig")).token_types == 0
    assert full(saved(tmp_path / "b", "BertConfig")).token_types == 2
    assert full(saved(tmp_path / "c", "XLNetConfig")).token_types > 2


def test_a_head_that_is_missing_is_an_error(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(**FAMILIES["BertConfig"], num_labels=3)
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"classifier\.weight\. To evaluate a language model"):
        load_full_model(full(tmp_path), CPU)
    config.architectures = ["BertLMHeadModel"]
    with pytest.raises(CheckpointError, match=r"is a BertLMHeadModel, which has no head for classes\. To evaluate"):
        PretrainedClassifier.from_config(str(tmp_path), config)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(**FAMILIES["BertConfig"]))
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="safetensors"):
        load_full_model(full(tmp_path), CPU)


def test_weights_need_no_metadata(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder, ids, lengths = saved(tmp_path, "BertConfig"), torch.full((1, 4), 5), torch.tensor([4])
    expected = load_full_model(full(folder), CPU).answer(ids, lengths)["logits"]
    for metadata in (None, {"made by": "hand"}):
        save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", metadata=metadata)
        assert torch.equal(load_full_model(full(folder), CPU).answer(ids, lengths)["logits"], expected)


def test_a_head_of_another_width_than_the_config_says_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertConfig")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": {"0": "a", "1": "b"}, "label2id": {}}))
    with pytest.raises(CheckpointError, match=r"classifier\.\w+ has shape \[3.*\] in its file, but \[2"):
        load_full_model(full(folder), CPU)


def test_a_model_without_a_classifier(tmp_path: Path) -> None:
    from transformers import ViTConfig

    ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="'vit', for which transformers has no sequence classifier"):
        full(tmp_path)


def test_names_and_problem_come_from_the_config(tmp_path: Path) -> None:
    names = {0: "bad", 1: "good"}
    model = full(saved(tmp_path / "a", "BertConfig", num_labels=2, id2label=names))
    assert (model.label_names, model.problem, model.num_labels) == (["bad", "good"], SINGLE_LABEL, 2)
    several = saved(tmp_path / "b", "BertConfig", problem_type="multi_label_classification")
    assert full(several).problem is MULTI_LABEL
    assert full(saved(tmp_path / "c", "BertConfig", num_labels=1)).problem is REGRESSION


def test_weights_that_differ_anywhere_have_another_digest(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertConfig")
    before = full(folder).digest()
    assert full(folder).digest() == before
    with edited_tensors(folder) as tensors:
        tensors["classifier.bias"][0] += 1e-6
    assert full(folder).digest() != before


@pytest.mark.parametrize("limit", [None, 16, 10**30])
def test_texts_are_cut_as_their_tokenizer_does_and_that_is_said(
    limit: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, longest = saved(tmp_path, "BertConfig"), min(limit or 40, 40)
    tokenizer = with_tokenizer(folder, class_last=False)
    if limit is not None:
        tokenizer.model_max_length = limit
        tokenizer.save_pretrained(folder)
    (tmp_path / "rows.csv").write_text(f"text,label\n{'abcdefgh' * 7},0\nabc,1\n")
    options: dict[str, Any] = {"model": str(folder), "dataset": str(tmp_path / "rows.csv"), "backend": "local"}

    def write(**further: Any) -> TokenizedDataset:
        config = EvaluationConfig(**options, **further)
        base = BaseModelSpec.read(config, full(folder))
        write_dataset(tmp_path, config.select(DataOptions), base, full(folder))
        return TokenizedDataset(tmp_path)

    data = write()
    theirs = tokenizer("abcdefgh" * 7, truncation=True, max_length=longest)["input_ids"]
    assert data.input_ids(0).tolist() == theirs and len(theirs) == longest
    assert (data.facts.truncated, data.facts.max_length) == (1, longest)
    said = f"notice: 1 text is cut to 16 tokens, the model_max_length of the tokenizer in {folder}. The model itself"
    assert (said in capsys.readouterr().err) == (limit == 16)
    assert write(max_length=20).lengths[0] == 20, "what is asked for counts"
    assert "notice" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "longest"), [("BertConfig", 40), ("RobertaConfig", 40), ("XLNetConfig", None), ("MptConfig", 40)]
)
def test_texts_may_be_as_long_as_there_are_positions(family: str, longest: int | None, tmp_path: Path) -> None:
    folder = saved(tmp_path, family)
    options: dict[str, Any] = {"model": str(folder), "dataset": "x.csv", "backend": "local"}
    base, classifier = BaseModelSpec.read(EvaluationConfig(**options), full(folder)), load_full_model(full(folder), CPU)
    if longest is None:
        assert base.max_length > 10**5
        return
    assert base.max_length == longest
    classifier.answer(torch.full((1, longest), 5), torch.tensor([longest]))
    with pytest.raises(ModelOutputError, match=f"failed on 1 text of {longest + 1} tokens"):
        classifier.answer(torch.full((1, longest + 1), 5), torch.tensor([longest + 1]))
    with pytest.raises(ConfigError, match=f"give --max-length of at most {longest}"):
        BaseModelSpec.read(EvaluationConfig(**options, max_length=longest + 1), full(folder))


def test_answers_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    classifier = load_full_model(full(saved(tmp_path, "BertConfig")), CPU)
    classifier._model.classifier.bias.data[1] = float("nan")
    with pytest.raises(ModelOutputError, match="not finite for 2 of 2 texts"):
        checked_answers(classifier, torch.ones(2, 4).long(), torch.tensor([4, 2]))


def test_ranks_get_the_gpus_of_their_host_round_robin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [local_device(rank).index for rank in range(4)] == [0, 1, 0, 1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert local_device(3) == CPU
