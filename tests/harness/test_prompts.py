"""Prompts of `dist-eval run` in a chat template: the answers are those of the harness' own backend."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import results_of, run_here, with_options
from harness_tasks import by_hugging_face, make_tasks, make_tokenizer
from pyarrow import parquet
from tiny_models import VOCABULARY, save_tiny_models

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
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer(VOCABULARY)
    tokenizer.chat_template = TEMPLATE
    return save_tiny_models(tmp_path_factory.mktemp("chat"), "llama", tokenizer=tokenizer)["llama"]


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat template", "text"])
def test_answers_are_those_of_the_harness_own_backend(
    is_chat: bool, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = make_tasks(tmp_path / "tasks")
    data = tmp_path / "data.jsonl"
    shutil.copy(tasks / "test.json", data)
    given = ["--system-instruction", SYSTEM, *(["--apply-chat-template"] if is_chat else [])]
    options = {"num_fewshot": 0, "bootstrap_iters": 0, "system_instruction": SYSTEM, "apply_chat_template": is_chat}
    expected = by_hugging_face(model, tasks, ASKED, {"batch_size": 1, "max_length": 256}, **options)["samples"]
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
