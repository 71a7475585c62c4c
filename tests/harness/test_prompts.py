"""Prompts of `dist-eval run` in a chat template: the answers are those of the harness' own backend."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import results_of, run_here, with_options
from harness_tasks import make_tasks, make_tokenizer
from pyarrow import parquet
from tiny_models import VOCABULARY

SYSTEM = "river {{ stone }}"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
ASKED = {
    "letters": ["--label-column", "answer", "--label-words", "0=a", "1=b", "2=c", "3=d"],
    "stories": ["--label-column", "ending", "--generate", "--stop", "w", "Question:", "--max-new-tokens", "7"],
}


@pytest.fixture(scope="module")
def model(tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "llama"
    shutil.copytree(tiny_models["llama"], folder)
    tokenizer = make_tokenizer(VOCABULARY)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def by_hugging_face(model: Path, tasks: Path, **options: Any) -> dict[str, Any]:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(model),
        tokenizer=AutoTokenizer.from_pretrained(model),
        batch_size=1,
        max_length=256,
        device="cpu",
    )
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = simple_evaluate(theirs, tasks=[*ASKED], task_manager=manager, num_fewshot=0, bootstrap_iters=0, **options)
    return dict(found["samples"])


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat template", "text"])
def test_answers_are_those_of_the_harness_own_backend(
    is_chat: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    tasks = make_tasks(tmp_path / "tasks")
    data = tmp_path / "data.jsonl"
    shutil.copy(tasks / "test.json", data)
    given = ["--system-instruction", SYSTEM, *(["--apply-chat-template"] if is_chat else [])]
    expected = by_hugging_face(model, tasks, system_instruction=SYSTEM, apply_chat_template=is_chat)
    for name, asked in ASKED.items():
        command = ["-m", "dist_eval", "--model", str(model), "--dataset", str(data), "--backend", "local", *given]
        command += ["--prompt", "Question: {question}\\nAnswer:", *asked, "--output", str(tmp_path / name)]
        assert run_here(*command, "--report", "none") == 0, capfd.readouterr().err
        rows = parquet.read_table(tmp_path / name / "predictions.parquet").to_pylist()
        samples = sorted(expected[name], key=lambda sample: sample["doc_id"])
        if name == "stories":
            assert [row["text"].strip() for row in rows] == [sample["resps"][0][0].strip() for sample in samples]
            assert len({row["text"] for row in rows}) > 3
            continue
        scores = np.array([[float(value) for [(value, _)] in sample["resps"]] for sample in samples])
        theirs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        assert np.array([row["probabilities"] for row in rows]) == pytest.approx(theirs, abs=1e-4)
        template = results_of(tmp_path / name)["model"]["prompt"]["template"]
        shown = f"[system] {SYSTEM} [user] Question: {{question}}\nAnswer: [assistant]\n"
        assert template == (f"<s>{shown}" if is_chat else f"{SYSTEM}Question: {{question}}\nAnswer:")
        assert run_here(*with_options([*command, "--report", "none"], ["--system-instruction", "another"])) == 1
        assert "prompt and label words" in capfd.readouterr().err
