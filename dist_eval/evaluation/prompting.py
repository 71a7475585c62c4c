"""From the options about prompts to a language model with label words, and to examples before a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dist_eval.base_model.config import read_base_config
from dist_eval.data.labelled_rows import LabelledRows, draw_examples
from dist_eval.data.prompts import PromptedWords, Template, join_texts
from dist_eval.data.references import draw_referenced
from dist_eval.data.revisions import pinned
from dist_eval.data.tokenizers import load_tokenizer
from dist_eval.errors import ConfigError
from dist_eval.model.label_words import LabelWords
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.options.groups import DataOptions
from dist_eval.options.prompts import PromptOptions

BETWEEN_EXAMPLES = "\n\n"


def label_words_of(model: str, options: PromptOptions, data: DataOptions) -> LabelWords:
    """Reads what the options about prompts name."""
    config, template = read_base_config(model, pinned("model", model)), Template(str(options.prompt))
    if Path(model).is_dir():  # a hub's is read once the model is loaded
        OutputEmbedding(model, config)
    names, words = zip(*(split_name(item) for item in options.label_words), strict=True)
    prompted = PromptedWords(template, words, load_tokenizer(model), options.label_delimiter)
    rows: list[int] = []
    if options.few_shot:
        source = LabelledRows(
            options.few_shot_from or (), template.columns, data.label_column, names, data.labels, numbers=True
        )
        rows, examples = draw_examples(source, options.few_shot, options.few_shot_seed)
        shown = [prompted.with_words([[text] for text in texts], [number])[0] for texts, number in examples]
        prompted.put_before(shown, BETWEEN_EXAMPLES)
    return LabelWords(model, config, prompted, list(names), options.length_normalization, rows)


def examples_before(
    options: PromptOptions, label_column: str, template: Template, tokenizer: Any
) -> tuple[list[int], str]:
    """Draws the examples before each prompt after which a text is generated.

    Args:
        options: the options about prompts.
        label_column: column with the references, of which the first one follows each example's prompt.
        template: the prompt of a row.
        tokenizer: a Hugging Face tokenizer.

    Returns:
        Their rows in the file that they are drawn from, and their text; none and an empty text without examples.

    Raises:
        DataError: an example cannot be read.
    """
    if not options.few_shot:
        return [], ""
    source = LabelledRows(options.few_shot_from or (), template.columns, label_column, (), numbers=True)
    rows, examples = draw_referenced(source, options.few_shot, options.few_shot_seed)
    shown = [
        template.fill([[text] for text in texts])[0] + (template.space or " ") + reference + BETWEEN_EXAMPLES
        for texts, reference in examples
    ]
    return rows, join_texts(shown, tokenizer.bos_token or "")


def split_name(item: str) -> tuple[str, str]:
    """Splits an item of `--label-words` into the name of the class and its word."""
    name, is_pair, word = item.partition("=")
    word = word if is_pair else name
    if not name.strip() or not word.strip():
        raise ConfigError(f"--label-words {item!r} should be a word, or NAME=WORD.")
    return name, word
