"""Tasks of the harness made of local files, of each type, and a tokenizer that splits their words raggedly."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_LINE = "river stone winter garden silver copper letter window market bridge candle harbour meadow thunder"
WORDS = _LINE.split()
DOCUMENTS = 24

CHOICES = {
    "output_type": "multiple_choice",
    "fewshot_split": "train",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}, {"metric": "acc_mutual_info"}, {"metric": "mcc"}],
}
TASKS: dict[str, dict[str, Any]] = {
    "words": CHOICES,
    "letters": {**CHOICES, "doc_to_choice": ["a", "b", "c", "d"], "metric_list": [{"metric": "acc"}]},
    "endings": {
        "output_type": "loglikelihood",
        "num_fewshot": 0,
        "doc_to_text": "{{question}}",
        "doc_to_target": " {{ending}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "texts": {
        "output_type": "loglikelihood_rolling",
        "num_fewshot": 0,
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
    },
    "stories": {
        "output_type": "generate_until",
        "fewshot_split": "train",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": " {{ending}}",
        "generation_kwargs": {"until": ["w", "Question:"], "max_gen_toks": 7},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
}


def make_tasks(folder: Path, seed: int = 0) -> Path:
    """Writes task files and their data to a folder."""
    folder.mkdir(exist_ok=True)
    draw = random.Random(seed)

    def words(most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))

    for split, count in (("train", 8), ("test", DOCUMENTS)):
        rows = [
            {
                "question": words(9),
                "choices": [words(3) for _ in range(4)],
                "answer": draw.randrange(4),
                "ending": words(2),
                "text": words(60),
            }
            for _ in range(count)
        ]
        (folder / f"{split}.json").write_text("\n".join(map(json.dumps, rows)))
    files = {split: str(folder / f"{split}.json") for split in ("train", "test")}
    for name, task in TASKS.items():
        common = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": files}, "test_split": "test"}
        (folder / f"{name}.yaml").write_text(json.dumps({**common, **task, "metadata": {"version": 1.0}}))
    return folder


def by_hugging_face(
    model: Path,
    tasks: Path,
    names: Iterable[str],
    backend: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Returns what the harness' own backend finds.

    Args:
        model: the model.
        tasks: the folder with the tasks.
        names: the tasks.
        backend: arguments of the backend.
        metadata: passed to the tasks.
        **options: further arguments of `simple_evaluate`.
    """
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(model),
        tokenizer=AutoTokenizer.from_pretrained(model),
        device="cpu",
        **backend,
    )
    manager = TaskManager(include_path=str(tasks), include_defaults=False, metadata=metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISABLE_MULTIPROC", "1")
        return dict(simple_evaluate(theirs, tasks=[*names], task_manager=manager, **options))


def make_tokenizer(vocabulary: int) -> Any:
    """Trains a tokenizer on the words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([" ".join(WORDS), "Question: abcd\nAnswer:"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
