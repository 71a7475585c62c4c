"""Task files from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from dist_eval.errors import ConfigError
from dist_eval.harness import tasks
from dist_eval.options.harness import HarnessConfig

BOMB = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]\n" for i in range(9))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"task: bomb\n{BOMB}", "bomb.yaml cannot be read: ValueError: it has over 100000 values, once its aliases"),
        ("task: [", "bomb.yaml cannot be read: ParserError: "),
    ],
)
def test_a_task_file_that_cannot_be_read_is_named(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bomb.yaml").write_text(content)
    options = HarnessConfig(model="m", tasks=["bomb"], include_path=[str(tmp_path)], backend="local")
    # the harness' own tasks are thousands of files
    monkeypatch.setattr(tasks, "_manager", lambda _: TaskManager(include_defaults=False, include_path=[str(tmp_path)]))
    with pytest.raises(ConfigError) as error:
        tasks.LoadedTasks.load(options)
    assert "the harness has no task 'bomb'." in str(error.value) and message in str(error.value)
