"""Options of language models: prompts, and how they generate texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from dist_eval.arguments.fields import Options, option
from dist_eval.arguments.types import Count, EscapedText, Limits, Natural, NonNegative
from dist_eval.errors import ConfigError, translating_os_errors


@dataclass(kw_only=True)
class PromptOptions(Options):
    """A prompt with label words, which make a language model a classifier without a tuned head, or `--generate`."""

    prompt: EscapedText | None = option(
        None,
        r"template over the columns of the dataset, such as 'Review: {text}\nSentiment:'",
        group="prompts",
        metavar="TEMPLATE",
    )
    prompt_file: str | None = option(None, "file with such a template", group="prompts", metavar="FILE")
    label_words: list[str] = option(
        [],
        "words that may follow the prompt: the name of each class, in the order of their numbers, or NAME=WORD",
        group="prompts",
        metavar="WORD",
    )
    generate: bool = option(
        False, "write a text after the prompt, and compare it with the references in the label column", group="prompts"
    )
    label_delimiter: EscapedText | None = option(
        None,
        "text between prompt and label word (default: the white space that ends the prompt, or else a space)",
        group="prompts",
        needs=("--label-words",),
    )
    length_normalization: Literal["none", "tokens", "bytes"] = option(
        "none", "divide a label word's log-likelihood by its number of tokens or bytes", group="prompts",
        needs=("--label-words",),
    )  # fmt: skip
    few_shot: Natural = option(
        0, "examples before each prompt, drawn at random from --few-shot-from", group="prompts",
        aliases=("num_fewshot",), needs=("--prompt",),
    )  # fmt: skip
    few_shot_from: str | list[str] | None = option(
        None, "files with the same columns as --dataset", group="prompts", metavar="FILE"
    )
    few_shot_seed: Natural = option(
        0, "seed for drawing the examples", group="prompts", metavar="SEED", needs=("--few-shot",)
    )
    apply_chat_template: bool = option(
        False, "send examples and prompt as the user's message, in the tokenizer's chat template", group="prompts",
        needs=("--prompt",),
    )  # fmt: skip
    system_instruction: str | None = option(
        None, "text before the examples and the prompt; the system message of a chat template", group="prompts",
        needs=("--prompt",),
    )  # fmt: skip

    def _validate(self) -> None:
        super()._validate()
        if self.prompt_file is not None:
            if self.prompt is not None:
                raise ConfigError("--prompt and --prompt-file cannot be combined: leave out one of them.")
            self.prompt, self.prompt_file = _read_prompt(Path(self.prompt_file)), None
        if self.generate and self.label_words:
            raise ConfigError(
                "--generate and --label-words cannot be combined: the model either writes a text or chooses a word. "
                "Leave out one of them."
            )
        if self.generate and self.prompt is None:
            raise ConfigError("--generate needs a --prompt to continue.")
        if (self.prompt is None) != (not self.label_words and not self.generate):
            raise ConfigError(
                "--prompt and --label-words must be given together: the model chooses the word after the prompt. Or "
                "give --prompt and --generate to have it write a text."
            )
        if len(self.label_words) == 1:
            raise ConfigError(f"--label-words names only {self.label_words[0]!r}: name at least two.")
        if bool(self.few_shot) != bool(self.few_shot_from):
            raise ConfigError(
                "--few-shot K and --few-shot-from FILE must be given together: leave out both, or give both."
            )


def _read_prompt(path: Path) -> str:
    with translating_os_errors(ConfigError, f"--prompt-file {path} cannot be read"):
        return path.read_text(encoding="utf-8-sig").removesuffix("\n")


@dataclass(kw_only=True)
class GenerationOptions(Options):
    """How texts are generated."""

    max_new_tokens: Count = option(64, "maximum tokens of a text", group="generation", needs=("--generate",))
    stop: list[EscapedText] = option(
        [], r"strings that end a text, such as '\n', in addition to the model's end tokens", group="generation",
        needs=("--generate",),
    )  # fmt: skip
    temperature: NonNegative = option(
        0.0, "temperature of the draws; 0 takes the likeliest token", group="generation", needs=("--generate",)
    )
    top_k: Natural = option(
        0, "draw from this number of the likeliest tokens; 0 for all", group="generation", needs=("--generate",)
    )
    top_p: Annotated[float, Limits(above=0, most=1)] = option(
        1.0,
        "draw from the likeliest tokens whose probabilities add up to this",
        group="generation",
        needs=("--generate",),
    )
    seed: Natural = option(
        0, "seed of the draws; a row's text depends only on it and on the row's position", group="generation",
        needs=("--generate",),
    )  # fmt: skip
    answer_pattern: str | None = option(
        None,
        r"regular expression that finds the answer in a text, such as 'answer is (\d+)': the first match, or its first "
        "group; without a match the text is wrong (default: '', the whole text)",
        group="generation",
        needs=("--generate",),
        metavar="REGEX",
    )

    def _validate(self) -> None:
        super()._validate()
        if self.answer_pattern is not None:
            try:
                re.compile(self.answer_pattern)
            except re.error as error:
                raise ConfigError(
                    f"--answer-pattern {self.answer_pattern!r} is not a Python regular expression: {error}."
                ) from error
