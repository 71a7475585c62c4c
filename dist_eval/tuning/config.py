"""The options of a tuning, and its command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dist_eval.errors import ConfigError
from dist_eval.metrics.catalogue import metric_names
from dist_eval.options.commandline import WHERE, Command
from dist_eval.options.config import DatasetRunConfig
from dist_eval.options.groups import Options, flag, option, unwrap_single

PROGRAM = "dist-eval tune"
# name of the project in trackers
PROJECT = "dist_eval-tuning"


@dataclass(kw_only=True)
class LearningOptions(Options):
    """What is tuned, and how it learns."""

    tuning_mode: str = option(
        "deep_ptune",
        "prompts in front of the text only (ptune), or also added before each block (deep_ptune)",
        group="tuned",
        choices=("ptune", "deep_ptune"),
    )
    pre_seq_len: int = option(16, "number of prompt tokens", group="tuned", metavar="TOKENS")
    epochs: int = option(3, "number of passes over the data", group="learning")
    batch_size: int = option(32, "examples in a batch, on all ranks together", group="learning", metavar="EXAMPLES")
    accumulation_steps: int = option(
        1, "batches whose gradients are summed for one update", group="learning", metavar="BATCHES"
    )
    learning_rate: float = option(1e-2, "peak learning rate of AdamW", group="learning", metavar="RATE")
    weight_decay: float = option(0.0, "weight decay of AdamW", group="learning", metavar="RATE")
    warmup: float = option(
        0.1,
        "fraction of the updates with a rising learning rate, before it decays to 0",
        group="learning",
        metavar="FRACTION",
    )
    max_grad_norm: float = option(
        1.0, "gradients are clipped to this norm (0: no clipping)", group="learning", metavar="NORM"
    )
    seed: int = option(0, "seed of the initial values and of the order of examples", group="learning")
    best_metric: str = option(
        "accuracy",
        "metric that selects the best epoch",
        group="learning",
        choices=metric_names("single_label_classification", "tuning"),
    )
    device: str = option(
        "auto",
        "device of embeddings, head and optimizer (auto: a GPU if there is one)",
        group="learning",
        choices=("auto", "cpu", "cuda"),
    )
    precision: str = option(
        "auto",
        "precision of local computation, float16 with scaled gradients (auto: float16 on a GPU, else float32)",
        group="learning",
        choices=("auto", "float32", "float16", "bfloat16"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pre_seq_len", "epochs", "batch_size", "accumulation_steps"):
            self._check_range(name, 1)
        self._check_range("seed", 0)
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"--learning-rate must be more than 0, not {self.learning_rate}.")
        for name in ("weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{flag(name)} must be at least 0, not {getattr(self, name)}.")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(f"--warmup must be between 0 and 1, not {self.warmup}.")

    @property
    def examples_per_update(self) -> int:
        """Number of examples in one update, on all ranks together."""
        return self.batch_size * self.accumulation_steps


@dataclass(kw_only=True)
class TuningConfig(LearningOptions, DatasetRunConfig):
    """The options of one tuning."""

    num_labels: int | None = option(None, "number of classes (default: those in the data)", group="tuned")

    eval_dataset: str | list[str] | None = option(
        None, "data to evaluate on after each epoch (default with --eval-split: --dataset)", group="data"
    )
    eval_subset: str | None = option(None, "configuration of --eval-dataset", group="data")
    eval_split: str | None = option(None, "split of --eval-dataset", group="data")

    save_every: int | None = option(
        None, "also save the resumable state after this number of updates", group="output", metavar="UPDATES"
    )

    def __post_init__(self) -> None:
        self._require(self.model, "--model", "the base model to tune")
        self._require(unwrap_single(self.dataset), "--dataset", "the data to learn from")
        super().__post_init__()
        self.eval_dataset = unwrap_single(self.eval_dataset)
        self._check_range("num_labels", 2)
        self._check_range("save_every", 1)
        if self.labels == "vectors":
            raise ConfigError("--labels vectors: tuning supports only texts with one class each.")
        if self.eval_subset and not (self.eval_dataset or self.eval_split):
            raise ConfigError("--eval-subset needs --eval-dataset or --eval-split.")

    @property
    def run_name(self) -> str:
        return f"{super().run_name}-{self.tuning_mode}"

    @property
    def evaluation_data(self) -> dict[str, Any] | None:
        """The options `dataset`, `subset` and `split` of the evaluation data; None if there is none."""
        if self.eval_dataset:
            return {"dataset": self.eval_dataset, "subset": self.eval_subset, "split": self.eval_split}
        if self.eval_split:
            return {"dataset": self.dataset, "subset": self.eval_subset or self.subset, "split": self.eval_split}
        return None


COMMAND = Command(
    program=PROGRAM,
    config=TuningConfig,
    description="Tunes soft prompts and a classification head for a base model hosted on a Petals swarm.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 2 --model ./llama --dataset train.csv --eval-dataset validation.csv \\
      --swarm embedded --output runs/tuned
  {PROGRAM} --nproc-per-node 4 --model MODEL --dataset train.csv --text-column sentence \\
      --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --tuning-mode ptune --epochs 5
""",
    usage=f"--model MODEL --dataset FILE\n{WHERE} [options]",
    nothing_asked=f"""\
dist_eval.tuning needs a base model, labelled data, and a swarm:
  {PROGRAM} --model MODEL --dataset FILE --initial-peers ADDRESS...
All options: --help""",
    groups={
        "what": ("what is learned from", None),
        "tuned": ("what is tuned", None),
        "learning": ("how it learns", None),
    },
)
