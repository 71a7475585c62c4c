"""A small pretrained base model: a Llama trained on labelled sentences.

It is trained as a language model on each sentence followed by a token for its label, so that the last token's state
contains the information that prompts and a head need. It is trained on the given sentences only.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.models import PAD, SEED, UNKNOWN, Size, train_tokenizer
from benchmarks.text import Corpus

LABELS = ("<negative>", "<positive>")
_POSITIONS, _HEAD_WIDTH, _BATCH = 512, 32, 32
_RATE, _DECAY, _LABEL_WEIGHT = 2e-3, 0.1, 100.0
_MASKED = 0.2  # share of tokens that are masked in each epoch: without it the model memorizes the sentences


def pretrain(folder: Path, corpus: Corpus, size: Size, *, epochs: int) -> None:
    """Pretrains a base model on labelled sentences, and saves it with its tokenizer in a folder."""
    torch.manual_seed(SEED)
    generator = np.random.default_rng(SEED)
    tokenizer = train_tokenizer(corpus.sentences)
    tokenizer.add_special_tokens({"additional_special_tokens": list(LABELS)})
    model = _new_model(size, tokenizer)
    texts, unknown = tokenizer(corpus.sentences)["input_ids"], tokenizer.convert_tokens_to_ids(UNKNOWN)
    ends = tokenizer.convert_tokens_to_ids(list(LABELS))
    steps = epochs * math.ceil(len(texts) / _BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_DECAY, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps, pct_start=0.1)
    model.train()
    for epoch in range(epochs):
        for chosen in _batches([len(text) for text in texts], generator):
            rows = [[*texts[i], ends[corpus.labels[i]]] for i in chosen]
            ids, lengths = _padded(rows, tokenizer.convert_tokens_to_ids(PAD))
            hidden = torch.from_numpy(generator.random(ids.shape) < _MASKED)
            hidden[:, 0] = False
            logits = model(input_ids=ids.masked_fill(hidden, unknown)).logits[:, :-1]
            losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            position = torch.arange(ids.shape[1] - 1)
            is_text, is_label = position < lengths[:, None] - 1, position == lengths[:, None] - 2
            weights = is_text + (_LABEL_WEIGHT - 1) * is_label
            loss = (losses.view(weights.shape) * weights).sum() / weights.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        print(f"  pretraining: epoch {epoch + 1} of {epochs}, loss {loss.item():.3f}", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _new_model(size: Size, tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 8 // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=max(1, size.hidden // _HEAD_WIDTH),
        max_position_embeddings=_POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.bos_token_id,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def _batches(lengths: list[int], generator: np.random.Generator) -> list[np.ndarray]:
    """Groups texts of similar length into batches, in random order."""
    order = generator.permutation(len(lengths))
    order = order[np.argsort(np.asarray(lengths)[order], kind="stable")]
    batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
    return [batches[number] for number in generator.permutation(len(batches))]


def _padded(rows: list[list[int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), int(lengths.max())), padding)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    return ids, lengths
