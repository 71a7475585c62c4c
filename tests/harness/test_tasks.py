"""Tasks as they are loaded: their examples, what the harness ignores of them, and what cannot be loaded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_eval.errors import ConfigError, DataError
from dist_eval.options.harness import HarnessConfig

pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from dist_eval.harness import finding
from dist_eval.harness.finding import find_tasks
from dist_eval.harness.notices import Notices, after_metrics
from dist_eval.harness.tasks import LoadedTasks

Load = Callable[..., LoadedTasks]
ROWS = [{"id": n, "question": f"q{n}", "answer": n % 2} for n in range(12)]
TASK = {
    "task": "strange",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}?",
    "doc_to_choice": ["no", "yes"],
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


class StandInModel(LM):  # type: ignore[misc]
    """Answers every request without a model; the harness' own dummy model asks a hub for a tokenizer."""

    tokenizer_name = ""

    def loglikelihood(self, requests: list[Instance], **_: Any) -> list[tuple[float, bool]]:
        return [(-1.0, False) for _ in requests]

    def loglikelihood_rolling(self, requests: list[Instance], **_: Any) -> list[float]:
        return [-1.0 for _ in requests]

    def generate_until(self, requests: list[Instance], **_: Any) -> list[str]:
        return ["answer" for _ in requests]


def write(folder: Path, splits: dict[str, list[dict[str, Any]]], **changes: Any) -> Path:
    """Writes a task, and the data of its splits."""
    folder.mkdir(exist_ok=True)
    for split, rows in splits.items():
        (folder / f"{split}.json").write_text("\n".join(map(json.dumps, rows)))
    files = {"data_files": {split: str(folder / f"{split}.json") for split in splits}}
    task = {**TASK, "dataset_kwargs": files, **changes}
    (folder / f"{task['task']}.yaml").write_text(json.dumps(task))
    return folder


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a task `strange`, and has the harness build its requests."""

    def run(
        splits: dict[str, list[dict[str, Any]]] | None = None, shots: int | None = None, **changes: Any
    ) -> LoadedTasks:
        folder = write(tmp_path / "tasks", splits or {"test": ROWS}, **changes)
        options = {"model": "llama", "backend": "local", "include_path": [str(folder)], "num_fewshot": shots}
        loaded = LoadedTasks.load(HarnessConfig(tasks=["strange"], **options))
        task = loaded.tasks["strange"]
        if shots is not None and task.get_config("num_fewshot") != 0:
            task.set_config(key="num_fewshot", value=shots)
        task.set_fewshot_seed(1234)
        task.build_all_requests()
        loaded.say_replaced()
        return loaded

    return run


def turns(prompt: str) -> list[str]:
    """Returns the examples of a prompt, and its question."""
    *examples, question = prompt.split("\n\n")
    return [*examples, question]


def prompts(loaded: LoadedTasks) -> list[list[str]]:
    return [turns(instance.args[0]) for instance in loaded.tasks["strange"].instances if instance.idx == 0]


def own_examples(loaded: LoadedTasks) -> int:
    """Returns how many prompts hold their own question with its answer."""
    answers = [f"{row['question']}? {TASK['doc_to_choice'][row['answer']]}" for row in ROWS]
    return sum(answer in examples for answer, (*examples, _) in zip(answers, prompts(loaded), strict=True))


COPIES = [{**row, "id": row["id"] + 100} for row in ROWS]
OTHERS = [{"id": 50 + n, "question": f"other{n}", "answer": 0} for n in range(12)]


def test_a_task_that_shuffles_its_data_has_them_in_one_order(tmp_path: Path) -> None:
    folder = write(tmp_path, {"test": [{**ROWS[0], "id": number} for number in range(40)]})
    (folder / "own.py").write_text(
        "import random\n\n\ndef shuffled(docs):\n    random.shuffle(order := list(range(len(docs))))\n"
        "    return docs.select(order)\n"
    )
    task = folder / "strange.yaml"
    task.write_text(task.read_text().removesuffix("}") + ', "process_docs": !function own.shuffled}')
    options = HarnessConfig(tasks=["strange"], model="llama", backend="local", include_path=[str(folder)])

    def order() -> list[int]:
        random.seed()
        return [document["id"] for document in LoadedTasks.load(options).tasks["strange"].test_docs()]

    first = order()
    assert sorted(first) == list(range(40)) != first and order() == first


@pytest.mark.parametrize(
    ("splits", "changes"),
    [
        ({"test": ROWS}, {}),
        ({"test": ROWS}, {"fewshot_config": {"sampler": "first_n"}}),
        ({"test": ROWS}, {"test_split": None, "validation_split": "test", "fewshot_split": "test"}),
        ({"test": ROWS, "copy": ROWS}, {"fewshot_split": "copy"}),
        ({"test": ROWS, "train": [*COPIES, *OTHERS]}, {"training_split": "train"}),
        ({"test": [*ROWS]}, {"doc_to_choice": None, "output_type": "generate_until", "doc_to_target": "{{answer}}"}),
    ],
    ids=["test only", "first", "validation", "same documents", "same texts", "texts"],
)
def test_no_example_is_the_question(
    load: Load, splits: dict[str, list[dict[str, Any]]], changes: dict[str, Any]
) -> None:
    loaded = load(splits, shots=5, **changes)
    assert own_examples(loaded) == 0
    assert all(len(set(prompt)) == len(prompt) == 6 for prompt in prompts(loaded))
    replaced = loaded.guards["strange"].prompts
    assert 0 < replaced <= 12
    [said] = [text for text in loaded.notices.lines() if "contained the question" in text]
    assert said.startswith(f"Task strange: the examples of {replaced} of 12 prompts contained the question")


def test_only_what_held_the_question_is_changed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = load(shots=5)
    monkeypatch.setattr("dist_eval.harness.examples.ExampleGuard._is_question", lambda *_: False)
    theirs = load(shots=5)
    differ = [ours != without for ours, without in zip(prompts(guarded), prompts(theirs), strict=True)]
    assert sum(differ) == own_examples(theirs) == guarded.guards["strange"].prompts == 4


def test_examples_of_a_split_of_their_own_are_those_of_the_harness(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    splits, changes = {"test": ROWS, "train": OTHERS}, {"fewshot_split": "train"}
    ours = load(splits, shots=5, **changes)
    assert not ours.notices.lines()
    monkeypatch.setattr("dist_eval.harness.tasks.ExampleGuard", lambda task: ours.guards["strange"])
    assert prompts(load(splits, shots=5, **changes)) == prompts(ours)


@pytest.mark.parametrize(
    ("rows", "found"), [(ROWS[:5], "there are only 4 to draw from besides the question"), (ROWS[:4], "only 4")]
)
def test_too_few_examples_are_refused(load: Load, rows: list[dict[str, Any]], found: str) -> None:
    with pytest.raises(DataError, match=rf"Task strange: each question needs 5 examples .*{found}"):
        load({"test": rows}, shots=5)


def test_a_folder_names_all_tasks_in_it_and_never_takes_the_place_of_a_task(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("first", "second"):
        write(tmp_path / "mine" / "deeper" if name == "second" else tmp_path / "mine", {"test": ROWS}, task=name)
    write(tmp_path / "first", {"test": ROWS[:1]}, task="first")  # as a copy of it would
    monkeypatch.chdir(tmp_path)
    for folder in ("./mine", "mine/", str(tmp_path / "mine")):
        loaded = LoadedTasks.load(HarnessConfig(tasks=[folder], model="llama", backend="local"))
        assert list(loaded.tasks) == ["first", "second"]
    loaded = LoadedTasks.load(HarnessConfig(tasks=["first"], include_path=["mine"], model="llama", backend="local"))
    assert len(loaded.tasks["first"].eval_docs) == len(ROWS)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("./empty", "no task './empty'"),
        ("./nothing.yaml", "no task './nothing.yaml'. There is no file of this name."),
        pytest.param("empty", "write ./empty", marks=pytest.mark.slow),  # it reads all task files of the harness
    ],
)
def test_a_folder_without_a_task_is_said(name: str, advice: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=advice):
        LoadedTasks.load(HarnessConfig(tasks=[name], model="llama", backend="local"))


def test_a_task_may_have_a_slash_in_its_name(tmp_path: Path) -> None:
    write(tmp_path / "tasks", {"test": ROWS}, task="strange")
    folder = tmp_path / "tasks"
    for file in folder.glob("*.yaml"):
        file.write_text(file.read_text().replace("strange", "my/strange", 1))
    assert find_tasks(options(folder, tasks=["my/strange"]), Notices())[1] == ["my/strange"]


def test_the_harness_own_warnings_are_notices(load: Load) -> None:
    said = load(generation_kwargs={"until": ["x"]}).notices.lines()
    assert [text for text in said if "passed `generation_kwargs`, but not using" in text]


def test_a_task_file_that_cannot_be_read_is_named(load: Load, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "broken.yaml").write_text("task: broken\nother: [")
    (folder / "common.yaml").write_text("output_type: multiple_choice")  # to be included by others
    [broken] = load().notices.lines()
    assert broken.startswith(f"The task file {folder / 'broken.yaml'} cannot be read: while parsing")
    with pytest.raises(ConfigError, match=r"no task 'broken'. .*broken.yaml cannot be read: while parsing"):
        LoadedTasks.load(HarnessConfig(tasks=["broken"], model="m", backend="local", include_path=[str(folder)]))


def test_two_different_tasks_of_a_name_are_refused(load: Load, tmp_path: Path) -> None:
    load()
    folder, options = tmp_path / "tasks", {"model": "m", "backend": "local", "include_path": [str(tmp_path / "tasks")]}
    (folder / "all.yaml").write_text(json.dumps({"group": "all", "task": ["strange"]}))
    assert [*LoadedTasks.load(HarnessConfig(tasks=["all,strange,strange"], **options)).tasks] == ["strange"]
    (folder / "all.yaml").write_text(json.dumps({"group": "all", "task": [{"task": "strange", "num_fewshot": 3}]}))
    with pytest.raises(ConfigError, match="there are two different tasks 'strange'"):
        LoadedTasks.load(HarnessConfig(tasks=["all", "strange"], **options))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_to_text": "question"}, "AssertionError: Context is not a string! : None"),
        (
            {"doc_to_target": "{{question.nowhere}}", "doc_to_choice": None, "output_type": "loglikelihood"},
            "no attribute",
        ),
        ({"doc_to_choice": "{{[question, question + 'x']}}"}, "TypeError"),
    ],
)
def test_what_fails_on_a_document_names_it(load: Load, changes: dict[str, Any], message: str) -> None:
    rows = [{**row, "question": {"nowhere": "x"} if "nowhere" in str(changes) else "x"} for row in ROWS]
    rows[3]["question"] = None
    with pytest.raises(DataError, match=rf"^Task strange, document 3: .*{message}"):
        load({"test": rows}, **changes)


def test_the_start_of_an_answer_that_fails_names_its_task(load: Load) -> None:
    with pytest.raises(DataError, match=r"^Task strange, doc_to_prefix: "):
        load({"test": ROWS}, gen_prefix="{{answer + 'x'}}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_to_txt": "x"}, "unexpected keyword argument 'doc_to_txt'"),
        ({"test_split": "tset"}, "KeyError: 'tset'"),
        ({"doc_to_text": "{{query}}"}, "'query' is undefined"),
        ({"metric_list": [{"metric": "exact_mach"}]}, "exact_mach not found in the evaluate library"),
        (
            {"metric_list": [{"metric": "acc", "aggregation": "meen"}]},
            "acc: a metric of metric_list has no aggregation",
        ),
        ({"doc_to_target": "answr"}, "doc_to_target: there is no column 'answr'; did you mean answer? The data has id"),
        ({"fewshot_config": {"doc_to_text": "quest"}}, "fewshot_config: doc_to_text: there is no column 'quest'"),
        ({"filter_list": [{"name": "own", "filter": [{"function": "regx"}]}]}, "KeyError: 'regx'"),
    ],
)
def test_a_wrong_key_of_a_task_file_is_found_before_anything_is_sent(
    load: Load, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match="strange") as caught:
        load(**changes)
    assert message in str(caught.value)


def test_functions_that_do_not_exist_are_named_with_their_file(load: Load, tmp_path: Path) -> None:
    load()
    path = tmp_path / "tasks" / "strange.yaml"
    path.write_text(path.read_text().removesuffix("}") + ', "process_docs": !function own.nothing}')
    (path.parent / "own.py").write_text("")
    with pytest.raises(DataError, match=rf"^{path}: AttributeError: Module .* has no function 'nothing'"):
        LoadedTasks.load(options(path.parent))


def options(folder: Path, **changes: Any) -> HarnessConfig:
    return HarnessConfig(
        **{"tasks": ["strange"], "model": "m", "backend": "local", "include_path": [str(folder)], **changes}
    )


def test_a_metric_that_fails_on_an_answer_names_its_task(load: Load) -> None:
    loaded = load(
        output_type="generate_until", doc_to_choice=None, metric_list=[{"metric": "exact_match", "regexes": 1}]
    )
    with pytest.raises(DataError, match=r"^Task strange, process_results: TypeError: "):
        loaded.run(StandInModel())


def test_samples_are_documents_by_their_numbers(load: Load, tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks", {"test": ROWS})
    loaded = LoadedTasks.load(options(folder, samples={"strange": [5, 3, 5]}))
    assert [sample["doc_id"] for sample in loaded.run(StandInModel())["samples"]["strange"]] == [3, 5]
    rows = [*ROWS[:5], {**ROWS[5], "question": None}]
    folder = write(tmp_path / "tasks", {"test": rows}, doc_to_text="question")
    with pytest.raises(DataError, match=r"^Task strange, document 5: "):
        LoadedTasks.load(options(folder, samples={"strange": [3, 5]})).run(StandInModel())
    with pytest.raises(ConfigError, match=r"there is no document 6 in the task strange, whose 6 doc"):
        LoadedTasks.load(options(folder, samples={"strange": [6]}))
    with pytest.raises(ConfigError, match=r"--samples: words is not among the tasks of this run \(strange\)"):
        LoadedTasks.load(options(folder, samples={"words": [0]}))


def test_tasks_that_run_code_of_the_model_are_refused_unless_that_is_confirmed(load: Load, tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks", {"test": ROWS}, unsafe_code=True)
    with pytest.raises(ConfigError, match=r"strange.yaml: unsafe_code: this task executes code that the model writes"):
        LoadedTasks.load(options(folder))
    assert LoadedTasks.load(options(folder, confirm_run_unsafe_code=True)).run(StandInModel())["results"]["strange"]


def test_a_run_depends_on_what_files_contain_not_on_where_they_are(tmp_path: Path) -> None:
    def identity(where: str, model: str, **changes: Any) -> dict[str, str]:
        folder = write(tmp_path / where, {"test": ROWS}, **changes)
        loaded = LoadedTasks.load(options(folder, model=model))
        loaded.run(StandInModel())
        return loaded.identity()

    before = identity("here", "llama")
    assert identity("there", "copies/llama") == before
    other = identity("there", "llama", description="Yes or no?")
    assert [name for name in before if before[name] != other[name]] == ["definition of the tasks"]


def test_patterns_name_all_tasks_that_they_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the harness' own are thousands of files
    monkeypatch.setattr(finding, "TaskManager", lambda **how: TaskManager(**{**how, "include_defaults": False}))
    for name in ("strange", "stranger", "other"):
        folder = write(tmp_path / "tasks", {"test": ROWS}, task=name)
    notices, config = Notices(), options(folder, tasks=["str*", "strange", "other"])
    assert find_tasks(config, notices)[1] == ["strange", "stranger", "other"]


def test_examples_that_are_not_turns_or_ignored_are_a_notice(tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks", {"test": ROWS})
    few_shot: dict[str, Any] = {"apply_chat_template": True, "num_fewshot": 2}
    [said] = LoadedTasks.load(options(folder, **few_shot)).notices.lines()
    assert said.startswith("The examples before a question are part of its message.")
    assert not LoadedTasks.load(options(folder, **few_shot, fewshot_as_multiturn=False)).notices.lines()
    write(tmp_path / "tasks", {"test": ROWS}, num_fewshot=0)
    [said] = LoadedTasks.load(options(folder, **few_shot)).notices.lines()
    assert said == "Task strange says num_fewshot: 0, so --num-fewshot 2 is ignored."


def test_thinking_is_for_tasks_that_generate(load: Load, tmp_path: Path) -> None:
    thinking = {"apply_chat_template": True, "enable_thinking": True, "think_end_token": "x"}
    with pytest.raises(ConfigError, match="--enable-thinking: the task strange needs log-likelihoods"):
        LoadedTasks.load(options(write(tmp_path / "tasks", {"test": ROWS}), **thinking))


def test_the_line_with_the_cause_is_shown(load: Load) -> None:
    with pytest.raises(DataError, match=r"^The task strange cannot be loaded: .* other: .*column names don't match"):
        load({"test": ROWS}, dataset_kwargs={"data_files": {"test": [*_two_files(load)]}})


def _two_files(load: Load) -> list[str]:
    folder = Path(load().tasks["strange"].config.dataset_kwargs["data_files"]["test"]).parent
    (folder / "second.json").write_text(json.dumps({"id": 1, "question": "q", "other": "x"}))
    return [str(folder / "test.json"), str(folder / "second.json")]


def test_what_is_left_out_of_the_metrics_or_counted_as_wrong_is_said(load: Load) -> None:
    names = ["acc", "perplexity"]
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]
    task = load(metric_list=metrics).tasks["strange"]
    targets = [0, -1, None, [1], float("nan")]
    samples = [{"doc_id": number, "target": target} for number, target in enumerate(targets)]
    assert after_metrics("strange", task, samples, {"alias": "x", "acc,none": 0.5, "acc_stderr,none": "N/A"}) == [
        "Task strange names the metric perplexity, which the harness did not compute (output_type: multiple_choice).",
        "Task strange: 1 of 5 documents have a list of targets, the others a single one; the harness treats all "
        "like the first one.",
        "Task strange: the target of 3 of 5 documents is missing or below 0, so no choice is right; the "
        "harness counts them as wrong.",
    ]
    assert not after_metrics("strange", task, samples[:1], {"acc,none": 0.5, "perplexity,none": 1})
