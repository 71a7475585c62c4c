"""`python -m benchmarks.recipes`: the errors of common recipes for evaluation on several processes.

Real ranks under torchrun evaluate the same synthetic predictions of three classes, one of them rare, by each recipe and
by `dist_eval.evaluate`. The predictions are known to every rank: each recipe gets its shard as it would from a model,
and the true metrics are known.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.harness import Program, Report
from benchmarks.processes import call
from dist_eval import evaluate

QUESTION = "How far from the true macro F1 are the well-known recipes, by the number of ranks?"
OURS = "dist_eval.evaluate"
ORDERS = ("shuffled", "sorted by class")
ROUNDING = 1e-10  # in points
_EXAMPLES, _BATCH, _POINTS = 1003, 32, 100.0
_SHARES = (0.8, 0.15, 0.05)  # of the classes; most datasets have rare ones


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs all recipes on each number of ranks, with different predictions in each round."""
    report = Report("recipes", QUESTION, unit="points off", options=options, more_is_better=False)
    errors: list[float] = []
    for seed in range(options.rounds):
        for ranks in options.ranks:
            found, *_ = call("benchmarks.recipes:evaluate_by_all", scratch_dir, ranks=ranks, seed=seed)
            for order, figures in found.items():
                for name, figure in figures.items():
                    off = _POINTS * abs(figure - figures["true"])
                    if name != "true":
                        report.add(f"{order}, {ranks} rank{'s' * (ranks > 1)}", name, off)
                    errors += [off] if name == OURS else []
    report.bound("dist_eval: the largest error of all", [max(errors)], bar=ROUNDING)
    report.note(
        f"{_EXAMPLES} synthetic predictions of three classes (80, 15 and 5 % of them), in batches of {_BATCH}. One "
        "point is 0.01 of macro F1."
    )
    report.finish()


def evaluate_by_all(scratch_dir: Path, *, seed: int) -> dict[str, dict[str, float]]:
    """Returns the true macro F1 of both orders, and that of each recipe, on this rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for order in ORDERS:
        examples = Examples(_EXAMPLES, seed, order)
        model = Known(examples)
        true = macro_f1(examples.label, examples.logits.argmax(1))
        found[order] = {"true": true, **{name: recipe(examples, model) for name, recipe in RECIPES.items()}}
    dist.destroy_process_group()
    return found


class Examples(Dataset[dict[str, torch.Tensor]]):
    """Synthetic logits and labels, shuffled or sorted by class, as files are often written."""

    def __init__(self, count: int, seed: int, order: str) -> None:
        generator = np.random.default_rng(seed)
        label = generator.choice(len(_SHARES), size=count, p=_SHARES)
        label = np.sort(label) if order == ORDERS[1] else label
        logits = generator.normal(size=(count, len(_SHARES))) + 1.8 * np.eye(len(_SHARES))[label]
        self.label, self.logits = torch.from_numpy(label), torch.from_numpy(logits).float()

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([index]), "labels": self.label[index]}


class Known(nn.Module):
    """A model whose answers are known: its input is the number of an example."""

    def __init__(self, examples: Examples) -> None:
        super().__init__()
        self.register_buffer("answers", examples.logits)

    def forward(self, input_ids: torch.Tensor) -> Any:
        """Looks the answers up."""
        answers: Any = self.answers
        return SimpleNamespace(logits=answers[input_ids[:, 0]])


Batches = list[tuple[torch.Tensor, torch.Tensor]]  # of a rank: labels and predicted classes


def macro_f1(label: torch.Tensor, prediction: torch.Tensor) -> float:
    """Returns the macro F1 of some examples."""
    return float(f1_score(label, prediction, average="macro", zero_division=0))


def mean_over_ranks(value: float) -> float:
    """Averages one number of each rank, with equal weights."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total / dist.get_world_size())


def sampled(examples: Examples, model: Known) -> Batches:
    """Evaluates this rank's batches from a `DistributedSampler`, including repeated examples."""
    loader = DataLoader(examples, _BATCH, sampler=DistributedSampler(examples, shuffle=False))
    return [(batch["labels"], model(batch["input_ids"]).logits.argmax(1)) for batch in loader]


def joined(batches: Batches) -> tuple[torch.Tensor, torch.Tensor]:
    """Joins a rank's batches."""
    labels, predictions = zip(*batches, strict=True)
    return torch.cat(labels), torch.cat(predictions)


def averaging_ranks(examples: Examples, model: Known) -> float:
    """Computes F1 on each rank's shard and averages the ranks."""
    return mean_over_ranks(macro_f1(*joined(sampled(examples, model))))


def averaging_batches(examples: Examples, model: Known) -> float:
    """Computes F1 of each batch and averages batches, then ranks."""
    return mean_over_ranks(float(np.mean([macro_f1(*batch) for batch in sampled(examples, model)])))


def counting_repeats(examples: Examples, model: Known) -> float:
    """Gathers all examples of the sampler, including repeats for padding."""
    gathered = [torch.cat(gather_equal(column)) for column in joined(sampled(examples, model))]
    return macro_f1(gathered[0], gathered[1])


def gather_equal(column: torch.Tensor) -> list[torch.Tensor]:
    """Gathers columns of equal length."""
    parts = [torch.empty_like(column) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, column)
    return parts


def dealt(examples: Examples) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Assigns whole batches to ranks; returns this rank's labels and predictions, and the count of each rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = torch.arange(len(examples)) // _BATCH
    counts = [int((batches % world_size == other).sum()) for other in range(world_size)]
    mine = batches % world_size == rank
    return examples.label[mine], examples.logits[mine].argmax(1), counts


def truncating(examples: Examples, model: Known) -> float:
    """Truncates each rank to the shortest one, because all_gather requires tensors of equal shape."""
    label, prediction, counts = dealt(examples)
    gathered = [torch.cat(gather_equal(column[: min(counts)].contiguous())) for column in (label, prediction)]
    return macro_f1(gathered[0], gathered[1]) if len(gathered[0]) else 0.0


def padding(examples: Examples, model: Known) -> float:
    """Pads each rank with zeros to the longest one and counts the padding, as correct predictions of class 0."""
    label, prediction, counts = dealt(examples)
    gathered = []
    for column in (label, prediction):
        padded = torch.zeros(max(counts), dtype=torch.int64)
        padded[: len(column)] = column
        gathered.append(torch.cat(gather_equal(padded)))
    return macro_f1(gathered[0], gathered[1])


def with_dist_eval(examples: Examples, model: Known) -> float:
    """Calls `dist_eval.evaluate`, on a loader with a `DistributedSampler`."""
    loader = DataLoader(examples, _BATCH, sampler=DistributedSampler(examples, shuffle=False))
    return float(evaluate(model, loader)["f1_macro"])


RECIPES: dict[str, Callable[[Examples, Known], float]] = {
    "F1 of each rank, averaged": averaging_ranks,
    "F1 of each batch, averaged": averaging_batches,
    "the sampler's repeats counted": counting_repeats,
    "gathered, cut to the shortest rank": truncating,
    "gathered, padding counted": padding,
    OURS: with_dist_eval,
}

PROGRAM = Program("recipes", QUESTION, measure, quick={"ranks": [1, 3]})
PROGRAM.add("--ranks", (1, 2, 4, 8), "numbers of ranks")

if __name__ == "__main__":
    PROGRAM.main()
