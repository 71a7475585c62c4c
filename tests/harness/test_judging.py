"""Documents that are judged while a run goes on: exactly those with all answers, and as the harness does in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness_tasks import TASKS, make_tasks, make_tokenizer

pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
from dist_eval.data.answers import generation_columns, log_likelihood_columns
from dist_eval.harness.judging import DocumentJudge
from dist_eval.harness.language_model import HarnessModel, Pair, Prompt
from dist_eval.harness.tasks import LoadedTasks
from dist_eval.options.harness import HarnessConfig

VOCABULARY, NEW_TOKENS = 128, 7
OWN_CODE = {
    "own": {"metric_list": [{"metric": "acc"}], "process_results": "!function own.process"},
    "sums": {"metric_list": [{"metric": "acc", "aggregation": "!function own.total", "higher_is_better": True}]},
}


def with_own_code(folder: Path) -> Path:
    """Adds tasks whose metrics are made by code of their own."""
    (folder / "own.py").write_text("def process(doc, results):\n    return {'acc': 1}\n\n\ntotal = sum\n")
    for name, changes in OWN_CODE.items():
        task = json.loads((folder / "words.yaml").read_text()) | {"task": name, **changes}
        text = json.dumps(task).replace('"!function own.process"', "!function own.process")
        (folder / f"{name}.yaml").write_text(text.replace('"!function own.total"', "!function own.total"))
    return folder


def test_in_the_end_all_documents_are_judged_and_as_by_the_harness(tmp_path: Path) -> None:
    folder = with_own_code(make_tasks(tmp_path / "tasks"))
    filters = [{"name": name, "filter": [{"function": function}]} for name, function in (("low", "lowercase"),)]
    task = json.loads((folder / "stories.yaml").read_text()) | {"task": "filtered", "filter_list": filters}
    (folder / "filtered.yaml").write_text(json.dumps(task))
    names = [*TASKS, *OWN_CODE, "filtered"]
    options = {"model": "llama", "backend": "local", "include_path": [str(folder)], "bootstrap_iters": 0}
    loaded = LoadedTasks.load(HarnessConfig(tasks=names, **options))
    tokenizer = make_tokenizer(VOCABULARY)
    judged, right = Counter[str](), Counter[str]()
    draw = np.random.default_rng(0)

    def answer(pairs: Iterator[Pair], prompts: Iterator[Prompt]) -> np.ndarray:
        texts, asked = list(pairs), list(prompts)
        columns = [*log_likelihood_columns().descr, *generation_columns(NEW_TOKENS).descr]
        answers = np.zeros(len(texts) + len(asked), dtype=columns)
        answers["log_likelihood"], answers["is_greedy"] = -draw.random(len(answers)), draw.random(len(answers)) < 0.5
        answers["length"][len(texts) :] = 1
        answers["tokens"][:, 0] = tokenizer.convert_tokens_to_ids("a")
        for positions in np.array_split(draw.permutation(len(answers)), 9):  # batches of all ranks
            for name, are_right in judge(positions, answers[positions]).items():
                judged[name] += len(are_right)
                right[name] += sum(are_right)
            assert len(judge._held) < len(answers), "of documents that wait for an answer only"
        assert not judge._held
        return answers

    model = HarnessModel(tokenizer, list(loaded.tasks.values()), answer, max_length=64, vocab_size=VOCABULARY)
    judge = DocumentJudge(loaded.tasks, model)
    found = loaded.run(model)["results"]
    shares = {"words/acc": "acc,none", "letters/acc": "acc,none", "endings/acc": "acc,none"}
    shares |= {"stories/exact_match": "exact_match,none", "filtered/exact_match/low": "exact_match,low"}
    assert judged.keys() == shares.keys(), "no perplexity, and no code of a task's own"
    for name, key in shares.items():
        task = found[name.split("/")[0]]
        assert judged[name] == task["sample_len"]
        assert right[name] / judged[name] == pytest.approx(task[key])
