"""The configuration of a run: all options of a command, combined from groups.

Everything that can be checked without reading data or contacting the swarm is checked on construction.
`dist_eval.arguments.commandline` parses the command line into a configuration. `RunConfig` has the options of every
kind of run, `DatasetRunConfig` adds those of a labelled dataset, and `EvaluationConfig` those of an evaluation.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dist_eval.arguments.commandline import Command
from dist_eval.arguments.fields import flag, option
from dist_eval.arguments.types import Level, Natural, NonNegative, Share
from dist_eval.data.files import is_pattern, names_of, shared_file
from dist_eval.data.prompts import Template
from dist_eval.errors import ConfigError
from dist_eval.options.groups import (
    DataOptions,
    ModelOptions,
    OutputOptions,
    RankOptions,
    SelectionOptions,
    SwarmOptions,
)
from dist_eval.options.prompts import GenerationOptions, PromptOptions
from dist_eval.petals.client.peers import all_peers
from dist_eval.revisions import HubKind
from dist_eval.tables import format_count

PROGRAM = "dist-eval run"

# a part of a command's usage: one of these options is required
WHERE = " " * 7 + "(--initial-peers ADDRESS... | --swarm embedded | --backend local)"

# what replaces options of similar programs
NOT_HERE = {
    "--batch-size": "requests are as large as servers accept; --token-budget limits them.",
    "--device": "servers choose the device and dtype of a model's blocks; with --backend local, ranks "
    "take the GPUs of this host, or else its CPU.",
}

# options that contradict --generate
_OF_CLASSIFIERS = ("label_delimiter", "length_normalization", "labels", "stratify")
_DEMO_HINT = " (--demo needs no other option.)"


@dataclass(kw_only=True)
class RunConfig(OutputOptions, RankOptions, ModelOptions, SwarmOptions):
    """The options of all kinds of runs."""

    def _validate(self) -> None:
        if self.backend != "local":
            self.initial_peers = all_peers(self.initial_peers, self.peers_file)
        super()._validate()
        if self.output == "":
            raise ConfigError("--output is empty: name a folder for the results, or leave it out.")
        self._check_where()
        for kind, (name, revision) in self.revisions.items():
            option_name = "--model" if kind == "model" else "--dataset"
            flag_name = "--revision" if kind == "model" else "--dataset-revision"
            if not name:
                raise ConfigError(f"{flag_name} {revision} needs {option_name} with a name on a hub.")
            if Path(name).exists() or name.startswith((".", "/", "~")):
                raise ConfigError(f"{flag_name} {revision}: {name} is not a name on a hub. Leave out {flag_name}.")

    @property
    def revisions(self) -> dict[HubKind, tuple[str, str]]:
        """Names of the model and dataset that have a revision on a hub, each with the revision."""
        return {"model": (self.model or "", self.revision)} if self.revision else {}

    @property
    def run_name(self) -> str:
        """Name of the run's folder in `runs/`, unless `--output` is given."""
        raise NotImplementedError

    @property
    def output_folder(self) -> Path:
        """The run's folder: `--output`, or `runs/` and the run's name."""
        return Path(self.output) if self.output is not None else Path("runs") / self.run_name

    def to_dict(self) -> dict[str, Any]:
        """Returns all options by name, ready for JSON."""
        return dataclasses.asdict(self)

    def recorded(self) -> dict[str, Any]:
        """Returns all options as recorded in results, without peers' addresses."""
        peers = f"{format_count(len(self.initial_peers), 'address', 'addresses')}, not recorded"
        return {**self.to_dict(), "initial_peers": peers if self.initial_peers else "none"}

    def without_temporary_names(self, message: str) -> str:
        """Returns an error message without names of temporary files."""
        return message

    def _require(self, value: Any, name: str, what: str, hint: str = "") -> None:
        if not value:
            raise ConfigError(f"{name} is missing: {what}.{hint}")

    def _check_where(self) -> None:
        if self.backend == "local":
            if self.initial_peers or self.peers_file or self.swarm:
                raise ConfigError("--backend local uses no swarm: leave out --initial-peers, --peers-file and --swarm.")
            for name in ("compression", "max_tokens_per_second", "dht_prefix"):
                if self.is_given(name):
                    raise ConfigError(f"--backend local uses no swarm: leave out {flag(name)}.")
            return
        if self.initial_peers and self.swarm:
            raise ConfigError(
                f"--swarm {self.swarm} and --initial-peers cannot be combined: "
                "--initial-peers names a running swarm, --swarm embedded starts one, --swarm public means Petals' own."
            )
        if not (self.initial_peers or self.swarm):
            raise ConfigError(
                "You did not name a swarm. Give --initial-peers ADDRESS... or --peers-file FILE for a running one, "
                "--swarm embedded to start one on this host, or --swarm public to send the data to Petals' public "
                "swarm. --backend local needs none."
            )


@dataclass(kw_only=True)
class DatasetRunConfig(RunConfig, DataOptions):
    """The options of runs on a labelled dataset."""

    def _validate(self) -> None:
        super()._validate()
        self._check_text_columns()

    @property
    def revisions(self) -> dict[HubKind, tuple[str, str]]:
        of_dataset = (self.dataset if isinstance(self.dataset, str) else "", self.dataset_revision or "")
        return {**super().revisions, **({"dataset": of_dataset} if self.dataset_revision else {})}

    def recorded(self) -> dict[str, Any]:
        """Returns all options as recorded in results; data in memory are named by their contents."""
        from dist_eval.data.in_memory import name_in_memory  # pyarrow takes a while to import

        return {**super().recorded(), "dataset": name_in_memory(self.dataset or ()) or self.dataset}

    def without_temporary_names(self, message: str) -> str:
        """Returns an error message in which data in memory are named by their type."""
        from dist_eval.data.in_memory import name_in_memory

        file = self.dataset or ""
        return message.replace(str(file), Path(str(file)).stem) if name_in_memory(self.dataset or ()) else message

    def _check_text_columns(self) -> None:
        if len(self.text_column) > 2:
            raise ConfigError(f"--text-column takes one column, or two for a pair, not {len(self.text_column)}.")
        if len({*self.text_column}) < len(self.text_column):
            raise ConfigError(f"--text-column names {self.text_column[0]!r} twice: a pair has two columns.")

    @property
    def run_name(self) -> str:
        """The dataset's name: that of its file or folder, or the common prefix of its files' names."""
        names = names_of(self.dataset or "")
        if len(names) == 1 and not is_pattern(names[0]):
            return Path(names[0]).stem
        prefixes = [re.split(r"[*?[]", Path(name).name)[0] for name in names]
        alike = os.path.commonprefix(prefixes)  # noqa: RUF071 (characters are meant, not folders)
        return alike.strip("-_. ") or Path(os.path.abspath(names[0])).parent.name or "data"


@dataclass(kw_only=True)
class EvaluationConfig(DatasetRunConfig, SelectionOptions, PromptOptions, GenerationOptions):
    """The options of one evaluation run.

    Raises:
        ConfigError: on construction, when an option is out of range, missing, or contradicts another.
    """

    model: str | None = option(
        None, "base model: folder or hub name (default: that of the checkpoint)", group="model", metavar="MODEL"
    )
    checkpoint: str | None = option(
        None,
        "tuned checkpoint, with config.json and safetensors; without one, --backend local evaluates a classifier with "
        "its own head",
        group="model",
        metavar="FOLDER",
    )
    demo: bool = option(False, "evaluate the embedded example on a private swarm on this host", group="model")
    metric: list[str] = option(
        [],
        "custom metrics, [NAME=]package.module:name: a function or a metric of torchmetrics; or the path of a metric "
        "of Hugging Face's evaluate. With --generate: f1, rouge_l, or a function of a text and its references",
        group="metrics",
        repeats=True,
        metavar="METRIC",
    )
    confidence: Level = option(0.95, "confidence level of intervals", group="metrics", metavar="LEVEL")
    slice_by: list[str] = option(
        [], "also compute metrics by values of these columns, or by length in tokens (length)", group="metrics",
        metavar="COLUMN",
    )  # fmt: skip
    group_column: str | None = option(
        None,
        "column with the group of each row, such as the document of a sentence: intervals allow for correlation within "
        "groups",
        group="metrics",
        metavar="NAME",
    )
    report: Literal["numbers", "texts", "none"] = option(
        "numbers",
        "show mistakes in report.html with positions and labels (numbers), or also with texts; or write no report",
        group="output",
    )
    audit: Share = option(
        0.0, "share of the batches to send twice, over different servers, and compare", group="failures",
        metavar="FRACTION",
    )  # fmt: skip
    audit_tolerance: NonNegative | None = option(
        None, "relative difference that counts as agreement (default: by the servers' dtype)", group="failures",
        metavar="FRACTION", needs=("--audit",),
    )  # fmt: skip
    on_error: Literal["stop", "skip"] = option(
        "stop", "if an example gets no prediction: stop the run, or count it and leave it out", group="failures"
    )
    max_failed: Natural = option(
        100, "maximum number of examples that --on-error skip leaves out", group="failures", metavar="EXAMPLES",
        needs=("--on-error skip",),
    )  # fmt: skip

    def _validate(self) -> None:
        if self.demo:
            self._become_demo()
        else:
            self._require(self.dataset, "--dataset", "the data to evaluate on", _DEMO_HINT)
            if self.prompt_file or self.prompt:
                self._require(self.model, "--model", "the language model that --prompt is for")
                if self.checkpoint:
                    raise ConfigError(
                        "--checkpoint and --prompt cannot be combined: a checkpoint has a tuned head, a prompt uses "
                        "the language model's own. Leave out one; `dist-eval compare` compares two runs."
                    )
            elif self.backend == "local" and not self.checkpoint:
                what = "a classifier, or a tuned checkpoint"
                self._require(self.model, "--model or --checkpoint", what, _DEMO_HINT)
            else:
                what = "a tuned head. A language model needs --prompt with --label-words or --generate instead"
                self._require(self.checkpoint, "--checkpoint", what, _DEMO_HINT)
        super()._validate()
        if self.prompt is not None:
            self._take_columns_of(self.prompt)
        self._check_generation()
        if self.precision is not None and self.group_column is not None:
            raise ConfigError(
                "--precision needs independent rows, so it contradicts --group-column: give --sample instead."
            )

    @property
    def run_name(self) -> str:
        """The dataset's name, or `demo`."""
        return "demo" if self.demo else super().run_name

    def _check_text_columns(self) -> None:
        if self.prompt is None:  # a prompt takes any number of columns
            super()._check_text_columns()

    def _take_columns_of(self, prompt: str) -> None:
        columns = Template(prompt).columns
        if self.text_column not in (["text"], columns):
            raise ConfigError("--prompt names the columns of the texts itself: leave out --text-column.")
        if self.label_column in columns:
            raise ConfigError(f"--prompt shows the model the labels: leave out the column {self.label_column!r}.")
        shared = shared_file(self.few_shot_from, self.dataset or ()) if self.few_shot_from else None
        if shared:
            raise ConfigError(f"--few-shot-from {shared} is also the evaluated dataset: draw examples from other data.")
        self.text_column = columns

    def _check_generation(self) -> None:
        for name in filter(self.is_given, _OF_CLASSIFIERS if self.generate else ()):
            raise ConfigError(f"{flag(name)} is for classes, but --generate writes texts. Leave out {flag(name)}.")

    def _become_demo(self) -> None:
        from dist_eval import demo

        if self.prompt is not None or self.prompt_file is not None:
            raise ConfigError("--demo evaluates the embedded example, a tuned checkpoint: leave out --prompt.")
        for name, value in demo.OPTIONS.items():
            if self.is_given(name) and getattr(self, name) != value:
                raise ConfigError(
                    f"--demo evaluates the embedded example: leave out {flag(name)}, or leave out --demo."
                )
            setattr(self, name, value)
        if self.output is None:
            self.overwrite = True  # runs/demo is the demo's own folder

    def _check_where(self) -> None:
        if self.backend == "local" and self.audit:
            raise ConfigError("--backend local uses no servers for --audit to compare: leave out --audit.")
        if self.initial_peers or self.swarm or not self.demo:  # the demo starts its own swarm
            super()._check_where()


EVALUATION = Command(
    program=PROGRAM,
    config=EvaluationConfig,
    description="Evaluates a tuned classifier or a language model whose blocks run on a Petals swarm: exactly, on any "
    "number of processes.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 2 --demo
  {PROGRAM} --nproc-per-node 4 --checkpoint TUNED --dataset test.csv --text-column sentence \\
      --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --output runs/sst2
  {PROGRAM} --model ./llama --prompt 'Review: {{text}}\\nSentiment:' --label-words negative positive \\
      --dataset test.csv --swarm embedded
  {PROGRAM} --model ./llama --prompt 'Question: {{question}}\\nAnswer:' --generate --stop '\\n' \\
      --label-column answer --dataset test.jsonl --swarm embedded
  {PROGRAM} --backend local --model ./bert --dataset test.csv --report texts
""",
    usage=f"(--checkpoint TUNED | --model MODEL --prompt TEMPLATE (--label-words WORD... | --generate))\n"
    f"       --dataset FILE {WHERE.strip()}\n       [options]",
    nothing_asked=f"""\
dist_eval needs a model (with a tuned checkpoint, or a prompt), labelled data, and a swarm or --backend local:
  {PROGRAM} --model MODEL --checkpoint TUNED --dataset FILE --initial-peers ADDRESS...
Or try it on its own private swarm: {PROGRAM} --demo   (all options: --help)""",
    is_run=True,
    foreign=NOT_HERE,
)
