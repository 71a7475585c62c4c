"""Rebuilds the embedded example: `python -m dist_eval.demo.build [FOLDER]`, a few minutes on 2 cores.

1. The digits as text, split into training and test data (see `digits.py`).
2. A base model of 0.45 M parameters, pretrained as a language model on the training digits, each followed by its label
   as a separate token; digits are shifted by up to a pixel, differently in every epoch.
3. A tuned checkpoint: 16 deep prompts and a classification head, the base frozen, on the same training digits, by
   `python -m dist_eval.tuning` through a private swarm of two servers.

The test data are used for neither; the accuracy on them is printed at the end.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from dist_eval.demo import digits
from dist_eval.model.classifier import load_locally
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.process.programs import run_program

SEED = 20240229
HIDDEN, LAYERS, HEADS, POSITIONS = 96, 4, 4, 512
PRETRAIN_EPOCHS, PRETRAIN_RATE, LABEL_WEIGHT = 40, 3e-3, 5.0
TUNING_OPTIONS = ("--tuning-mode", "deep_ptune", "--pre-seq-len", "16", "--epochs", "3", "--seed", str(SEED))
BATCH = 32
PAD, UNKNOWN, BEGIN = "<pad>", "<unk>", "<s>"
BASE_NAME = "dist_eval/demo/base"


def build_tokenizer() -> Any:
    """Builds a character tokenizer with one additional token for each label."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    labels = [f"<{label}>" for label in range(digits.NUM_CLASSES)]
    words = [PAD, UNKNOWN, BEGIN, *digits.LEVELS, digits.ROW_SEPARATOR, *labels]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, words.index(BEGIN))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        additional_special_tokens=labels,
        model_input_names=["input_ids", "attention_mask"],  # as Llama's: its forward takes no token types
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def shifted(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Shifts a digit by up to one pixel in each direction, cropping it at the border."""
    down, right = generator.integers(-1, 2, size=2)
    padded = np.pad(image, 1)
    return padded[1 - down : 9 - down, 1 - right : 9 - right]


def epoch_batches(
    positions: np.ndarray, generator: np.random.Generator, tokenizer: Any
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields one epoch of shuffled, shifted digits, each with its label as the last token."""
    images, labels = digits.load_images()
    order = generator.permutation(positions)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        texts = [digits.image_to_text(shifted(images[i], generator)) for i in chosen]
        ends = [tokenizer.convert_tokens_to_ids(f"<{labels[i]}>") for i in chosen]
        rows = [[*tokenizer(text)["input_ids"], end] for text, end in zip(texts, ends, strict=True)]
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), tokenizer.pad_token_id)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
        yield ids, lengths


def pretrain(folder: Path) -> None:
    """Pretrains the base model on the training digits and saves it with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    generator = np.random.default_rng(SEED)
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.bos_token_id,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    train = digits.split_indices()["train"]
    steps = PRETRAIN_EPOCHS * math.ceil(len(train) / BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PRETRAIN_RATE, weight_decay=0.05, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PRETRAIN_RATE, total_steps=steps, pct_start=0.1)
    for epoch in range(PRETRAIN_EPOCHS):
        for ids, lengths in epoch_batches(train, generator, tokenizer):
            logits = model(input_ids=ids).logits
            losses = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            position = torch.arange(ids.shape[1] - 1)
            is_text, is_label = position < lengths[:, None] - 1, position == lengths[:, None] - 2
            weights = is_text + (LABEL_WEIGHT - 1) * is_label
            loss = (losses.view(weights.shape) * weights).sum() / weights.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        print(f"pretraining: epoch {epoch + 1} of {PRETRAIN_EPOCHS}, loss {loss.item():.3f}", flush=True)
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tune(base: Path, train: Path, folder: Path) -> TunedCheckpoint:
    """Tunes deep prompts and a head through a private swarm, and saves them."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as output:
        options = ["--model", str(base), "--dataset", str(train), "--swarm", "embedded", "--output", output]
        subprocess.run([sys.executable, "-m", "dist_eval.tuning", *options, *TUNING_OPTIONS], check=True)
        tuned = TunedCheckpoint.load(Path(output) / "last")
    saved = replace(tuned, base_model=BASE_NAME)
    saved.save(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return saved


def main() -> int:
    """Builds data, base model and checkpoint into a folder."""
    parser = argparse.ArgumentParser(prog="python -m dist_eval.demo.build", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        digits.write_csv(folder / f"digits-{split}.csv", split)
    pretrain(folder / "base")
    tuned = tune(folder / "base", folder / "digits-train.csv", folder / "tuned")
    accuracy = evaluate_locally(folder / "base", tuned)
    print(f"accuracy on the {len(digits.split_indices()['test'])} test digits: {accuracy:.4f}")
    return 0


def evaluate_locally(base: Path, tuned: TunedCheckpoint) -> float:
    """Returns the accuracy on the test digits, one text at a time."""
    from transformers import AutoTokenizer

    tokenizer, classifier = AutoTokenizer.from_pretrained(base), load_locally(str(base), tuned)
    images, labels = digits.load_images()
    hits = 0
    for position in digits.split_indices()["test"]:
        ids = torch.tensor([tokenizer(digits.image_to_text(images[position]))["input_ids"]])
        hits += int(classifier.logits(ids, torch.tensor([ids.shape[1]])).argmax()) == labels[position]
    return float(hits / len(digits.split_indices()["test"]))


if __name__ == "__main__":
    run_program(main)
