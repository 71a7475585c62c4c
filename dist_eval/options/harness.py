"""The options of `dist-eval harness`, and its command line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeAlias

from dist_eval.arguments.commandline import Command
from dist_eval.arguments.fields import flag, option
from dist_eval.arguments.types import Level, Natural, Reader, read_mapping
from dist_eval.errors import ConfigError, one_line
from dist_eval.options.config import NOT_HERE, WHERE, RunConfig
from dist_eval.process.files import is_utf8

PROGRAM = "dist-eval harness"
_LISTING = "`lm-eval ls tasks`"

# options that change prompts or the metrics of answers; runs without them keep the fingerprints of older versions
_OF_RESULTS = (
    *("gen_kwargs", "system_instruction", "fewshot_as_multiturn", "samples", "metadata"),
    *("think_end_token", "enable_thinking", "chat_template"),
)


def key_values(text: str) -> Any:
    """Reads `temperature=0.7,until=["a", "b"]`, or a JSON object, as the harness' own command line does."""
    if text.lstrip().startswith("{"):
        return read_mapping(text)
    require_harness()
    from lm_eval._cli.utils import key_val_to_dict

    try:
        return dict(key_val_to_dict(text))
    except (ValueError, TypeError, RecursionError, MemoryError) as error:  # from the evaluation of values
        raise ValueError(one_line(error)) from error


def require_harness() -> None:
    """Checks that the harness is installed."""
    if find_spec("lm_eval") is None:
        raise ConfigError(
            "The lm-evaluation-harness is not installed. In the repository, run `uv sync --extra harness`, or start "
            "the command with `uv run --extra harness`. With a wheel: `pip install 'WHEEL[harness]'`."
        )


def _require_recordable(name: str, mapping: dict[Any, Any]) -> None:
    """Checks that results can record an option as JSON."""
    try:
        text = json.dumps(mapping, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be written as JSON: {one_line(error)}.") from error
    if not (is_utf8(text) and all(isinstance(key, str) for key in mapping)):
        raise ConfigError(f"{name} {mapping!r:.40} has a key that is not text, or is not UTF-8.")


KeyValues: TypeAlias = Annotated[dict[str, Any], Reader(key_values)]


@dataclass(kw_only=True)
class HarnessConfig(RunConfig):
    """The options of an evaluation on tasks of the lm-evaluation-harness.

    Raises:
        ConfigError: on construction, when an option is out of range, missing, or contradicts another.
    """

    tasks: list[str] = option(
        [], "tasks, groups or tags of the harness, patterns of their names, task files (YAML), or folders of them",
        group="tasks", metavar="TASK",
    )  # fmt: skip
    include_path: list[str] = option([], "folders with further task files", group="tasks", metavar="FOLDER")
    num_fewshot: Natural | None = option(
        None, "examples before each question, except in tasks that use none (default: as each task says)",
        group="tasks", aliases=("few_shot",),
    )  # fmt: skip
    limit: float | None = option(
        None, "documents of each task: a number, or a share below 1 (default: all)", group="tasks", metavar="N"
    )
    samples: dict[str, Any] = option(
        {}, 'numbers of documents, from 0, by task: a JSON file, or JSON such as {"my_task": [0, 3]}', group="tasks",
        metavar="JSON",
    )  # fmt: skip
    apply_chat_template: bool = option(False, "send questions in the tokenizer's chat template", group="tasks")
    chat_template: str | None = option(
        None, "name of the chat template, if the tokenizer has several", group="tasks", metavar="NAME",
        needs=("--apply-chat-template",),
    )  # fmt: skip
    fewshot_as_multiturn: bool | None = option(
        None, "make each example a question and an answer of the conversation", group="tasks",
        needs=("--apply-chat-template",),
    )  # fmt: skip
    system_instruction: str | None = option(
        None, "text before each task's description; the system message of a chat template", group="tasks"
    )
    gen_kwargs: KeyValues = option(
        {}, "how texts are generated, overriding tasks: temperature=0.7,do_sample=true,max_gen_toks=64, or JSON",
        group="tasks",
    )  # fmt: skip
    think_end_token: str | None = option(
        None, "text, or id of the token, that ends a model's thinking: only what follows it is scored", group="tasks",
        metavar="TOKEN",
    )  # fmt: skip
    enable_thinking: bool | None = option(
        None, "tell the chat template to let the model think (--no-enable-thinking: not to; default: its own)",
        group="tasks", needs=("--apply-chat-template",),
    )  # fmt: skip
    metadata: KeyValues = option(
        {}, "passed to tasks that ask for it, such as max_seq_lengths=[4096,8192], or JSON", group="tasks"
    )
    confirm_run_unsafe_code: bool = option(
        False, "run tasks that execute the code that the model writes, on this host", group="tasks"
    )
    seed: Natural = option(0, "seed of texts that a task draws at random", group="tasks")
    strict: bool = option(False, "fail if a context is too long", group="tasks")
    bootstrap_iters: Natural = option(
        1000, "resamples for the harness' standard errors of metrics such as f1", group="metrics"
    )
    confidence: Level = option(0.95, "confidence level of intervals", group="metrics", metavar="LEVEL")
    report: Literal["numbers", "texts", "none"] = option(
        "numbers",
        "show missed documents in report.html with numbers and answers (numbers), or also with texts; or write no "
        "report",
        group="output",
    )

    def _validate(self) -> None:
        self.tasks = [name for names in self.tasks for name in names.split(",") if name]
        self._require(self.model, "--model", "the language model to evaluate")
        self._require(self.tasks, "--tasks", "names of tasks, such as hellaswag", f" {_LISTING} shows them.")
        super()._validate()
        if self.max_length == 1:
            raise ConfigError("--max-length must be at least 2, for a context and a continuation, not 1.")
        if self.limit is not None and not (0 < self.limit < 1 or (self.limit >= 1 and self.limit % 1 == 0)):
            raise ConfigError(f"--limit must be a whole number, or a share between 0 and 1, not {self.limit:g}.")
        for name in ("gen_kwargs", "metadata", "samples"):
            _require_recordable(flag(name), getattr(self, name))
        self._check_samples()
        self._check_conversation()

    def _check_samples(self) -> None:
        self._refuse_together("samples", "limit")
        for task, numbers in self.samples.items():
            is_list = isinstance(numbers, list) and numbers
            if not is_list or any(type(number) is not int or number < 0 for number in numbers):
                raise ConfigError(
                    f"--samples: {task} should have a list of numbers of documents, from 0, not {numbers!r:.40}."
                )
        # sorted, because the harness evaluates them in the data's order but would name them in the given order
        self.samples = {task: sorted(set(numbers)) for task, numbers in self.samples.items()}

    def _check_conversation(self) -> None:
        if self.enable_thinking and not self.think_end_token:
            raise ConfigError(
                "--enable-thinking needs --think-end-token, such as '</think>': otherwise the model's thoughts would "
                "count as its answers."
            )

    @property
    def think_end(self) -> str | int | None:
        """The end of the model's thinking: a text, or the id of a token."""
        token = self.think_end_token or None
        return int(token) if token is not None and token.isdecimal() else token

    @property
    def model_args(self) -> dict[str, Any]:
        """The model's arguments, as the harness calls them, for its tasks and its own files."""
        model = {"pretrained": str(self.model)} if self.model else {}
        thinking = {"think_end_token": self.think_end} if self.think_end_token else {}
        return {**model, **thinking, **self.template_options}

    @property
    def template_options(self) -> dict[str, Any]:
        """Arguments of the chat template besides the conversation."""
        return {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}

    def of_results(self) -> dict[str, str]:
        """Returns the options that results depend on, as texts by flag."""
        always = ("num_fewshot", "limit", "apply_chat_template")
        given = {name: getattr(self, name) for name in _OF_RESULTS}
        given["fewshot_as_multiturn"] = self.fewshot_as_multiturn or None
        return {
            **{flag(name): str(getattr(self, name)) for name in always},
            **{flag(name): json.dumps(value) for name, value in given.items() if value not in (None, {}, "")},
        }

    @property
    def run_name(self) -> str:
        names = (name.rstrip("/").rpartition("/")[2].removesuffix(".yaml") for name in self.tasks[:3])
        return re.sub(r"[*?\[\]]", "", "-".join(names)) or "tasks"


_RESUMED = "answers stay in the journal: start the same command again to resume, or to score a complete run again."

_TRIED = "`lm-eval run --model dummy --tasks TASK --include_path FOLDER` tries tasks without a model."

# options of the lm-evaluation-harness without a counterpart, or with one of another name
_TRACKED = "--tracker wandb logs a run."
_GENERATED = "it is one of --gen-kwargs, such as temperature=0.7,do_sample=true,max_gen_toks=64,top_p=0.9."

_OF_LM_EVAL = {
    "--model-args": "give its parts as options, such as --model, --max-length, --adapter, --think-end-token.",
    **NOT_HERE,
    "--max-batch-size": NOT_HERE["--batch-size"],
    "--output-path": "the folder of the run is --output.",
    "--log-samples": "samples are always written, to samples_TASK_DATE.jsonl.",
    "--use-cache": _RESUMED,
    "--cache-requests": "requests are built again, and answers stay in the journal.",
    "--check-integrity": _TRIED,
    "--write-out": "samples_TASK_DATE.jsonl has all requests.",
    "--show-config": "results_DATE.json has the configuration of each task.",
    "--predict-only": "generated texts are in samples_TASK_DATE.jsonl, beside their metrics.",
    "--wandb-args": _TRACKED,
    "--wandb-config-args": _TRACKED,
    "--verbosity": "--verbose shows what the harness prints.",
    "--trust-remote-code": "code of a hub is never run; code in your own task files (!function) is.",
}

_OF_GEN_KWARGS = dict.fromkeys(
    ("--max-gen-toks", "--do-sample", "--temperature", "--top-k", "--top-p", "--until"), _GENERATED
)

_OF_INSPECT = {
    "--max-tokens": _GENERATED,
    "--system-message": "it is --system-instruction.",
    "--sample-id": "--samples names documents by their numbers, from 0.",
    "--epochs": "repeats: N in a task file, for drawn texts.",
    "--max-connections": "the number of requests in flight adapts to the swarm; --in-flight sets it.",
    "--timeout": "it is --request-timeout.",
    "--log-dir": "the folder of the run is --output.",
}

HARNESS = Command(
    program=PROGRAM,
    config=HarnessConfig,
    description="Evaluates a language model on a Petals swarm on tasks of the lm-evaluation-harness, exactly, on any "
    "number of processes.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 2 --tasks digits --model dist_eval/demo/base --swarm embedded
  {PROGRAM} --nproc-per-node 4 --tasks arc_easy,my_task --include-path my_tasks --num-fewshot 5 --limit 200 \\
      --model MODEL --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --output runs/arc

{_LISTING} shows the tasks. {_TRIED[0].upper()}{_TRIED[1:]}
""",
    usage=f"--tasks TASK... --model MODEL\n{WHERE} [options]",
    nothing_asked=f"""\
dist_eval.harness needs tasks, a language model, and a swarm:
  {PROGRAM} --tasks TASK... --model MODEL --initial-peers ADDRESS...
All options: --help""",
    foreign={**_OF_LM_EVAL, **_OF_GEN_KWARGS, **_OF_INSPECT},
    is_run=True,
)
