"""Base models and tuned checkpoints for benchmarks: random weights, a trained tokenizer, balanced predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dist_eval.model.classifier import load_locally
from dist_eval.petals.base_model.weights import without_warnings
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.model.loading import base_fingerprint

SEED = 20240302
PAD, UNKNOWN, BEGIN = "<pad>", "<unk>", "<s>"
PROMPT_TOKENS = 16
_VOCABULARY, _POSITIONS, _HEAD_WIDTH = 4000, 512, 64
# standard deviation of the weights: large enough that the last token's state depends on the whole sentence
_SPREAD = 0.06
_CENTERED_ON = 128


@dataclass(frozen=True)
class Size:
    """Size of a Llama model.

    Attributes:
        hidden: width.
        layers: number of blocks.
    """

    hidden: int
    layers: int

    def __str__(self) -> str:
        return f"{self.hidden}x{self.layers}"


TINY, SMALL, MEDIUM, WIDE = Size(64, 4), Size(256, 8), Size(512, 8), Size(2048, 8)
SIZES = {str(size): size for size in (TINY, SMALL, MEDIUM, WIDE)}


@dataclass(frozen=True)
class Model:
    """A base model and a checkpoint tuned for it, on disk.

    Attributes:
        size: its size.
        base: folder of the base model, with its tokenizer.
        tuned: folder of the tuned checkpoint.
    """

    size: Size
    base: Path
    tuned: Path

    @property
    def dht_prefix(self) -> str:
        """Name under which a swarm announces the model, as dist_eval expects it."""
        return self.base.name


def make_model(
    folder: Path, size: Size, sentences: Sequence[str], *, grouped: bool = False, positions: int = _POSITIONS
) -> Model:
    """Writes a base model and a checkpoint with 16 deep prompts and two labels; equal arguments give equal weights.

    Args:
        folder: an existing folder.
        size: size of the base model.
        sentences: training text of the tokenizer; the predictions for it are balanced.
        grouped: whether attention is grouped-query attention with one key and value for all queries.
        positions: tokens of the longest text.
    """
    model = Model(size, folder / f"base-{size}", folder / f"tuned-{size}")
    tokenizer = train_tokenizer(sentences, positions)
    _write_base(model, tokenizer, grouped, positions)
    _write_tuned(model, tokenizer, sentences)
    return model


def train_tokenizer(sentences: Sequence[str], positions: int = _POSITIONS) -> Any:
    """Trains a byte-pair encoding with 4000 tokens, so that sentences have a realistic number of tokens.

    Returns:
        A `transformers.PreTrainedTokenizerFast` that puts `<s>` in front of a text and pads on the right.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = [PAD, UNKNOWN, BEGIN]
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, special.index(BEGIN))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        model_max_length=positions,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def _write_base(model: Model, tokenizer: Any, grouped: bool, positions: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=model.size.hidden,
        intermediate_size=model.size.hidden * 7 // 2,  # the proportion of Llama 3 and of Mistral
        num_hidden_layers=model.size.layers,
        num_attention_heads=max(1, model.size.hidden // _HEAD_WIDTH),
        num_key_value_heads=1 if grouped else None,
        max_position_embeddings=positions,
        initializer_range=_SPREAD,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.bos_token_id,
    )
    with without_warnings():  # and without a progress bar
        LlamaForCausalLM(config).save_pretrained(model.base)
    tokenizer.save_pretrained(model.base)
    _make_readable_for_petals(model.base / "tokenizer.json")


def _make_readable_for_petals(file: Path) -> None:
    """Writes a tokenizer that today's library and that of 2023, used by Petals' own classes, can read."""
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    content["pre_tokenizer"]["add_prefix_space"] = True
    file.write_text(json.dumps(content), encoding="utf-8")


@torch.no_grad()
def _write_tuned(model: Model, tokenizer: Any, sentences: Sequence[str]) -> None:
    hidden, layers = model.size.hidden, model.size.layers
    generator = torch.Generator().manual_seed(SEED)
    draft = TunedCheckpoint(
        head=torch.zeros(2, hidden),
        prompts=_SPREAD * torch.randn(PROMPT_TOKENS, hidden, generator=generator),
        deep_prompts=_SPREAD * torch.randn(layers, PROMPT_TOKENS, hidden, generator=generator),
        label_names=["negative", "positive"],
        architecture={
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "vocab_size": len(tokenizer),
        },
    )
    classifier = load_locally(str(model.base), draft)
    encoded = tokenizer(list(sentences[:_CENTERED_ON]), padding=True, return_tensors="pt")
    states = classifier.backbone.hidden_states(encoded["input_ids"], classifier.prompts)
    last = PROMPT_TOKENS + encoded["attention_mask"].sum(dim=1) - 1
    pooled = classifier.backbone.final_norm(states[torch.arange(len(states)), last])
    # projects out the mean state of all sentences, or all would get the same class
    common = torch.nn.functional.normalize(pooled.mean(dim=0), dim=0)
    direction = torch.randn(hidden, generator=generator)
    direction -= (direction @ common) * common
    head = torch.stack([-direction, direction]) / hidden**0.5
    fingerprint = base_fingerprint(classifier.backbone.word_embeddings, classifier.backbone.final_norm)
    replace(draft, head=head, base_fingerprint=fingerprint).save(model.tuned)
