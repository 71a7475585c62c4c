"""Options of language models: what they are asked, and how they generate texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dist_eval.errors import ConfigError, os_reason
from dist_eval.options.groups import Options, option, unwrap_single, with_escapes


@dataclass(kw_only=True)
class PromptOptions(Options):
    """A prompt, and label words, by which a language model is a classifier without a tuned head, or `--generate`."""

    prompt: str | None = option(
        None,
        r"template over the columns of the dataset, such as 'Review: {text}\nSentiment:'; evaluates the language model "
        "--model itself, by its --label-words or by the text that it generates",
        group="prompt",
        metavar="TEMPLATE",
        type=with_escapes,
    )
    prompt_file: str | None = option(None, "file with such a template", group="prompt", metavar="FILE")
    generate: bool = option(
        False,
        "have the model write a text after the prompt, and compare it with the references in the label column",
        group="prompt",
    )
    label_words: list[str] = option(
        [],
        "what may follow the prompt: the name of each class, in the order of their numbers, or NAME=WORD",
        group="prompt",
        metavar="WORD",
    )
    label_delimiter: str | None = option(
        None,
        "text between the prompt and a label word (default: the white space that ends the prompt, or else a space)",
        group="prompt",
        metavar="TEXT",
        type=with_escapes,
    )
    length_normalization: str = option(
        "none",
        "what the log-likelihood of a label word is divided by: nothing, its number of tokens, or its number of bytes",
        group="prompt",
        choices=("none", "tokens", "bytes"),
    )
    few_shot: int = option(
        0,
        "examples before each prompt, drawn at random from --few-shot-from",
        group="prompt",
        least=0,
        aliases=("num_fewshot",),
    )
    few_shot_from: str | list[str] | None = option(
        None, "files with the columns of --dataset, other than it", group="prompt", metavar="FILE"
    )
    few_shot_seed: int = option(0, "seed of that draw", group="prompt", metavar="SEED", least=0)
    apply_chat_template: bool = option(
        False,
        "put each prompt, with the examples before it, as the user's message into the tokenizer's chat template",
        group="prompt",
    )
    system_instruction: str | None = option(
        None,
        "text before the examples and the prompt, with a chat template as system message",
        group="prompt",
        metavar="TEXT",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.few_shot_from = unwrap_single(self.few_shot_from)
        if self.prompt_file is not None:
            if self.prompt is not None:
                raise ConfigError("--prompt and --prompt-file contradict each other: leave out one of them.")
            self.prompt, self.prompt_file = _read_prompt(Path(self.prompt_file)), None
        if self.generate and self.label_words:
            raise ConfigError(
                "--generate and --label-words contradict each other: a language model writes a text after the prompt, "
                "or it chooses a word."
            )
        if self.generate and self.prompt is None:
            raise ConfigError("--generate continues a --prompt, which is missing.")
        if (self.prompt is None) != (not self.label_words and not self.generate):
            raise ConfigError(
                "--prompt and --label-words belong together: a language model chooses the word after the prompt. Or "
                "give --generate, and it writes a text after it."
            )
        if self.prompt is None and self.few_shot:
            raise ConfigError("--few-shot puts examples before a --prompt, which is missing.")
        if self.prompt is None and self.apply_chat_template:
            raise ConfigError("--apply-chat-template puts a --prompt into a conversation, which is missing.")
        if self.prompt is None and self.system_instruction:
            raise ConfigError("--system-instruction stands before a --prompt, which is missing.")
        if len(self.label_words) == 1:
            raise ConfigError(f"--label-words names only {self.label_words[0]!r}: there is nothing to choose from.")
        if bool(self.few_shot) != bool(self.few_shot_from):
            raise ConfigError("--few-shot K and --few-shot-from FILE belong together: leave out both, or give both.")


def _read_prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompt-file {path}: cannot be read ({os_reason(error)}).") from error


@dataclass(kw_only=True)
class GenerationOptions(Options):
    """How texts are generated."""

    max_new_tokens: int = option(64, "most tokens of a text", group="generation", least=1)
    stop: list[str] = option(
        [],
        r"strings at the first of which a text ends, such as '\n'; so do the tokens that the model ends texts with",
        group="generation",
        metavar="TEXT",
        type=with_escapes,
    )
    temperature: float = option(
        0.0, "draw each token with this temperature; 0 takes the likeliest one", group="generation"
    )
    top_k: int = option(0, "draw from so many of the likeliest tokens; 0 for all", group="generation", least=0)
    top_p: float = option(1.0, "draw from the likeliest tokens whose probabilities add up to this", group="generation")
    seed: int = option(
        0, "of the draws; a row's text depends on it and on the row's position alone", group="generation", least=0
    )

    answer_pattern: str | None = option(
        None,
        r"regular expression that finds the answer in a text, such as 'answer is (\d+)': the first match, of which the "
        "first group, if it has one; a text without a match is wrong (default: the whole text, as '' says to a "
        "complete run that has a pattern)",
        group="generation",
        metavar="REGEX",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answer_pattern is not None:
            try:
                re.compile(self.answer_pattern)
            except re.error as error:
                raise ConfigError(
                    f"--answer-pattern {self.answer_pattern!r} is no regular expression of Python: {error}."
                ) from error
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature must be a number of at least 0, not {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p must be more than 0 and at most 1, not {self.top_p}.")
