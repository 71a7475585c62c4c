"""The options of a tuning, and its command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from dist_eval.arguments.commandline import Command
from dist_eval.arguments.fields import Options, option
from dist_eval.arguments.types import Count, Limits, Natural, NonNegative, OneOf, Positive, Share
from dist_eval.errors import ConfigError
from dist_eval.metrics.catalogue import metric_names
from dist_eval.options.config import WHERE, DatasetRunConfig

PROGRAM = "dist-eval tune"
# name of the project in trackers
PROJECT = "dist_eval-tuning"


BestMetric: TypeAlias = Annotated[str, OneOf(metric_names("single_label_classification", "tuning"))]


@dataclass(kw_only=True)
class LearningOptions(Options):
    """The tensors to tune, and how they learn."""

    tuning_mode: Literal["ptune", "deep_ptune"] = option(
        "deep_ptune",
        "prompts in front of the text only (ptune), or also added before each block (deep_ptune)",
        group="tuning",
    )
    pre_seq_len: Count = option(16, "number of prompt tokens", group="tuning", metavar="TOKENS")
    epochs: Count = option(3, "number of passes over the data", group="learning")
    batch_size: Count = option(32, "examples in a batch, on all ranks together", group="learning", metavar="EXAMPLES")
    accumulation_steps: Count = option(
        1, "batches whose gradients are summed for one update", group="learning", metavar="BATCHES"
    )
    learning_rate: Positive = option(1e-2, "peak learning rate of AdamW", group="learning", metavar="RATE")
    weight_decay: NonNegative = option(0.0, "weight decay of AdamW", group="learning", metavar="RATE")
    warmup: Share = option(
        0.1,
        "fraction of the updates with a rising learning rate, before it decays to 0",
        group="learning",
        metavar="FRACTION",
    )
    max_grad_norm: NonNegative = option(
        1.0, "gradients are clipped to this norm (0: no clipping)", group="learning", metavar="NORM"
    )
    seed: Natural = option(0, "seed of the initial values and of the order of examples", group="learning")
    best_metric: BestMetric = option("accuracy", "metric that selects the best epoch", group="learning")
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", "device of embeddings, head and optimizer (auto: a GPU if there is one)", group="learning"
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto",
        "precision of local computation, float16 with scaled gradients (auto: float16 on a GPU, else float32)",
        group="learning",
    )

    @property
    def examples_per_update(self) -> int:
        """Number of examples in one update, on all ranks together."""
        return self.batch_size * self.accumulation_steps


@dataclass(kw_only=True)
class TuningConfig(LearningOptions, DatasetRunConfig):
    """The options of one tuning."""

    num_labels: Annotated[int, Limits(least=2)] | None = option(
        None, "number of classes (default: those in the data)", group="tuning"
    )
    eval_dataset: str | list[str] | None = option(
        None,
        "data to evaluate on after each epoch (default with --eval-split: --dataset)",
        group="data",
        metavar="FILE",
    )
    eval_subset: str | None = option(
        None, "configuration of --eval-dataset", group="data", metavar="NAME", needs=("--eval-dataset", "--eval-split")
    )
    eval_split: str | None = option(None, "split of --eval-dataset", group="data", metavar="NAME")
    save_every: Count | None = option(
        None, "also save the state to resume from after this number of updates", group="output", metavar="UPDATES"
    )

    def _validate(self) -> None:
        self._require(self.model, "--model", "the base model to tune")
        self._require(self.dataset, "--dataset", "the data to learn from")
        super()._validate()
        if self.labels == "vectors":
            raise ConfigError("--labels vectors: tuning supports only texts with one class each.")

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
    is_run=True,
)
