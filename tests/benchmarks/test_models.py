"""The models to measure with: the same each time, and no class that takes it all."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks.models import PROMPT_TOKENS, TINY, make_model
from benchmarks.text import make_corpus
from dist_eval.model.classifier import load_locally
from dist_eval.petals.model.checkpoint import TunedCheckpoint


def test_predictions_of_unseen_text_are_of_both_classes(tmp_path: Path) -> None:
    sentences = make_corpus(600).sentences
    model = make_model(tmp_path, TINY, sentences[:400])
    tuned = TunedCheckpoint.load(model.tuned)
    assert (tuned.tuning_mode, tuned.pre_seq_len, tuned.num_labels) == ("deep_ptune", PROMPT_TOKENS, 2)
    encoded = AutoTokenizer.from_pretrained(model.base)(sentences[400:], padding=True, return_tensors="pt")
    logits = load_locally(str(model.base), tuned).logits(encoded["input_ids"], encoded["attention_mask"].sum(dim=1))
    assert 0.25 < logits.argmax(dim=1).float().mean() < 0.75
    assert logits.std(dim=0).min() > 0.1


def test_equal_arguments_give_equal_files(tmp_path: Path) -> None:
    sentences = make_corpus(100).sentences
    models = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        torch.rand(3)  # whatever was drawn before
        models.append(make_model(tmp_path / name, TINY, sentences))
    first, second = models
    assert TunedCheckpoint.load(first.tuned).digest() == TunedCheckpoint.load(second.tuned).digest()
    weights = "model.safetensors"
    assert (first.base / weights).read_bytes() == (second.base / weights).read_bytes()
