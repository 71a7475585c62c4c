"""What options name, and what makes a run another one than the one in its folder."""

from __future__ import annotations

import dataclasses

import pytest

from dist_eval.errors import ConfigError
from dist_eval.evaluation.inputs import selection_of
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import SelectionOptions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem

BY_CONTENT = {
    *("model", "checkpoint", "dataset", "subset", "split", "text_column", "label_column", "labels", "strict", "demo"),
    *("max_length", "server_max_tokens", "token_budget", "adapter"),
    *("prompt", "prompt_file", "label_words", "label_delimiter", "length_normalization"),
    *("apply_chat_template", "system_instruction"),
    *("few_shot", "few_shot_from", "few_shot_seed"),
    *("limit", "sample", "precision", "sample_seed", "stratify"),
    *("session_share", "revision", "dataset_revision"),
}
"""Options whose effect is in the fingerprint: digests of models, tokens and labels, the limits and the plan."""

BY_VALUE = {"compression", "backend"}

WITHOUT_EFFECT = {
    *("initial_peers", "peers_file", "swarm", "servers", "dht_prefix", "in_flight"),
    "max_tokens_per_second",
    *("swarm_timeout", "request_timeout", "max_retries", "collective_timeout", "stop_grace"),
    *("audit", "audit_tolerance", "on_error", "max_failed"),
    *("metric", "confidence", "slice_by", "group_column", "output", "overwrite", "verbose", "report", "tracker"),
    *("generate", "max_new_tokens", "stop", "temperature", "top_k", "top_p", "seed", "answer_pattern"),
}
"""Options that change no prediction: where and how fast it is computed, what is checked, what follows from it. Those
of generated texts belong to another kind of run (`evaluation.generation`)."""


def test_whoever_adds_an_option_says_whether_it_makes_another_run() -> None:
    known = [*BY_CONTENT, *BY_VALUE, *WITHOUT_EFFECT]
    assert sorted(field.name for field in dataclasses.fields(EvaluationConfig)) == sorted(known), (
        "an option that changes predictions has to be in Classification.fingerprint"
    )


@pytest.mark.parametrize(
    ("options", "problem", "words"),
    [
        (SelectionOptions(sample=5, stratify=True), MULTI_LABEL, "--stratify needs rows of one class each"),
        (SelectionOptions(sample=5, stratify=True), REGRESSION, "this is a regression: leave it out"),
        (SelectionOptions(precision=0.1), REGRESSION, "--precision is about the share of right answers"),
    ],
)
def test_a_sample_that_labels_of_the_kind_do_not_allow_is_refused(
    options: SelectionOptions, problem: Problem, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        selection_of(options, 0.95, problem)


@pytest.mark.parametrize(
    ("options", "method", "size"),
    [
        (SelectionOptions(limit=5), "first", 5),
        (SelectionOptions(limit=5000), "first", 1000),
        (SelectionOptions(sample=5), "random", 5),
        (SelectionOptions(sample=5, stratify=True), "stratified", 5),
        (SelectionOptions(precision=0.05), "random", 276),
    ],
)
def test_the_options_say_how_many_of_a_thousand_rows_are_taken(
    options: SelectionOptions, method: str, size: int
) -> None:
    selection = selection_of(options, 0.95, SINGLE_LABEL)
    assert selection is not None
    assert (selection.method, selection.size(1000)) == (method, size)
