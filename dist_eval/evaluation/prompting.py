"""From the options about prompts to a language model with label words."""

from __future__ import annotations

from dist_eval.data.few_shot import draw_examples
from dist_eval.data.prompts import BETWEEN_EXAMPLES, PromptedWords, Template
from dist_eval.data.tokenizer_files import load_tokenizer
from dist_eval.model.label_words import LabelWords
from dist_eval.options.groups import DataOptions, PromptOptions
from dist_eval.swarm.families import read_base_config


def label_words_of(model: str, options: PromptOptions, data: DataOptions) -> LabelWords:
    """Reads what the options about prompts name.

    Args:
        model: folder or hub name of the language model.
        options: the prompt and the label words.
        data: how the columns of the examples are to be read.

    Raises:
        CheckpointError: there is no such model, Petals cannot serve it, or it has no tokenizer.
        ConfigError: prompt or label words cannot be used.
        DataError: an example cannot be read.
    """
    config, template = read_base_config(model), Template(str(options.prompt))
    delimiter = options.label_delimiter if options.label_delimiter is not None else template.space or " "
    names, words = [], []
    for item in options.label_words:
        name, is_pair, word = item.partition("=")
        names.append(name)
        words.append(delimiter + (word if is_pair else name))
    before = ""
    rows: list[int] = []
    if options.few_shot:
        rows, examples = draw_examples(
            str(options.few_shot_from),
            options.few_shot,
            options.few_shot_seed,
            columns=template.columns,
            label_column=data.label_column,
            label_names=names,
            labels=data.labels,
        )
        shown = [template.fill([[text] for text in texts])[0] + words[number] for texts, number in examples]
        before = "".join(text + BETWEEN_EXAMPLES for text in shown)
    prompted = PromptedWords(template, words, load_tokenizer(model), before)
    return LabelWords(model, config, prompted, names, options.length_normalization, rows)
