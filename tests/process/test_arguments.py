"""Names of options."""

from __future__ import annotations

from dist_eval.process.programs import ArgumentParser


def test_names_of_options_may_have_underscores_and_values_keep_theirs() -> None:
    parser = ArgumentParser()
    parser.add_argument("--num-fewshot", type=int)
    parser.add_argument("--group-column")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args(["--num_fewshot=2", "--group-column", "node_rank", "num_fewshot"])
    assert vars(given) == {"num_fewshot": 2, "group_column": "node_rank", "words": ["num_fewshot"]}
    assert parser.parse_known_args(["--no_such_option"])[1] == ["--no_such_option"]
