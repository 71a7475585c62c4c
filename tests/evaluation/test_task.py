"""What makes a run another one than the one in its folder."""

from __future__ import annotations

import dataclasses

from dist_eval.options.config import EvaluationConfig

BY_CONTENT = {
    *("model", "checkpoint", "dataset", "subset", "split", "text_column", "label_column", "labels", "strict", "demo"),
    *("max_length", "server_max_tokens", "token_budget", "adapter"),
    *("prompt", "prompt_file", "label_words", "label_delimiter", "length_normalization"),
    *("few_shot", "few_shot_from", "few_shot_seed"),
    "session_share",
}
"""Options whose effect is in the fingerprint: digests of models, tokens and labels, the limits and the plan."""

BY_VALUE = {"compression", "backend"}

WITHOUT_EFFECT = {
    *("initial_peers", "peers_file", "swarm", "servers", "dht_prefix", "in_flight", "compare_backends"),
    "max_tokens_per_second",
    *("swarm_timeout", "request_timeout", "max_retries", "collective_timeout", "stop_grace"),
    *("audit", "audit_tolerance", "on_error", "max_failed"),
    *("metric", "confidence", "slice_by", "group_column", "output", "overwrite", "verbose", "report"),
}
"""Options that change no prediction: where and how fast it is computed, what is checked, and what follows from it."""


def test_whoever_adds_an_option_says_whether_it_makes_another_run() -> None:
    known = [*BY_CONTENT, *BY_VALUE, *WITHOUT_EFFECT]
    assert sorted(field.name for field in dataclasses.fields(EvaluationConfig)) == sorted(known), (
        "an option that changes predictions has to be in EvalTask.fingerprint"
    )
