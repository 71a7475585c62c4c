"""Petals' pool of tasks, with tensors in memory that the handlers and blocks share."""

from __future__ import annotations

from typing import Any

import torch

from dist_eval.petals.server.shared_memory import SharedMemory


def task_pool_class() -> Any:
    """Returns the class; Petals must be imported late."""
    from petals.server.task_pool import PrioritizedTaskPool

    class TaskPool(PrioritizedTaskPool):  # type: ignore[misc]
        """A pool of tasks, each of which may overwrite its first tensor with its first output."""

        def __init__(self, memory: SharedMemory, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.memory = memory
            self._waiting: dict[Any, list[Any]] = {}

        @property
        def has_tasks(self) -> bool:
            """Whether tasks wait or are being computed; known in the process of the blocks."""
            return bool(self._dispatched_tasks) or not self._ordered_tasks.empty()

        async def compute(self, *args: Any, priority: float) -> list[Any]:
            """Submits a task, and returns its outputs. Called by handlers."""
            args = self.memory.put(args)  # type: ignore[assignment]
            future = self.submit_task(*map(self.memory.place_of, args), priority=priority)
            # the blocks may read and write the tensors even if nobody waits for the outputs any more
            self._waiting[future] = args  # type: ignore[assignment]
            future.add_done_callback(self._waiting.pop)
            return [self.memory.at(output) for output in await future]

        def load_batch_to_runtime(self, timeout: float | None = None, device: Any = None) -> tuple[Any, list[Any]]:
            """Returns the next task and its arguments; called in the process of the blocks."""
            task, args = super().load_batch_to_runtime(timeout, device)
            return task, [self._moved(self.memory.at(arg)) for arg in args]

        def send_outputs_from_runtime(self, uid: int, batch_outputs: list[Any]) -> None:
            """Sends the outputs of a task to its handler; called in the process of the blocks."""
            first = self._dispatched_tasks[uid].args[0]
            super().send_outputs_from_runtime(uid, [self.memory.replace(first, batch_outputs[0]), *batch_outputs[1:]])

        def _moved(self, value: Any) -> Any:
            return value.to(self.device) if isinstance(value, torch.Tensor) else value

    return TaskPool
