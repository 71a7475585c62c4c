"""The tasks of a request: what they compute, and how many blocks each has. Real servers are in `test_blocks`."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
from collections.abc import Callable
from multiprocessing.sharedctypes import RawValue
from typing import Any

import pytest
import torch

from dist_eval.petals.server import block_runner, server_tasks, task_sizes
from dist_eval.petals.server.block_runner import BlockRunner
from dist_eval.petals.server.server_tasks import run_backward, run_forward

BLOCKS, HIDDEN = 6, 8


def speeds(seconds: float) -> dict[str, Any]:
    return {kind: RawValue("d", seconds) for kind in task_sizes._seconds_per_work}


class Backend:
    """A block with what Petals' `TransformerBackend` has for its tasks."""

    def __init__(self, number: int) -> None:
        self.name, self.dtype = str(number), torch.float32
        self.layer = torch.nn.Linear(HIDDEN, HIDDEN)

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.tanh(self.layer(hidden))

    @torch.no_grad()
    def forward(self, hidden: torch.Tensor, adapter: str) -> tuple[torch.Tensor]:
        return (self.compute(hidden),)

    def backward(self, hidden: torch.Tensor, gradient: torch.Tensor, adapter: str) -> tuple[torch.Tensor]:
        inputs = hidden.detach().requires_grad_()
        return torch.autograd.grad(self.compute(inputs), inputs, gradient)  # type: ignore[return-value]


class Pool:
    """Runs a task at once, as the only one, and notes how many blocks it has."""

    def __init__(self, run: Callable[..., Any], place: int, sizes: list[int]) -> None:
        self.run, self.place, self.sizes = run, place, sizes
        self.priorities: list[float] = []

    async def compute(self, *arguments: Any, priority: float) -> Any:
        self.sizes.append(len(arguments[self.place]))
        self.priorities.append(priority)
        return self.run(*arguments)


class Prioritizer:
    def prioritize(self, *tensors: torch.Tensor, **kwargs: Any) -> float:
        return 2.0


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    torch.manual_seed(2)
    monkeypatch.setattr(task_sizes, "_seconds_per_work", speeds(math.inf))
    backends: list[Any] = [Backend(number) for number in range(BLOCKS)]
    runner, sizes = BlockRunner({backend.name: backend for backend in backends}, lambda: False), list[int]()
    for backend in backends:
        backend.sizes, backend.runner = sizes, runner
        backend.forward_pool, backend.backward_pool = Pool(runner.forward, 2, sizes), Pool(runner.backward, 3, sizes)
    return backends


@pytest.mark.parametrize("blocks_in_time", [0.0, 2.5, 1e9])
def test_gradients_of_inputs_and_prompts_are_those_of_the_blocks_however_many_a_task_has(
    blocks_in_time: float, backends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_sizes, "TASK_SECONDS", blocks_in_time * 15)
    for module in (block_runner, server_tasks):
        monkeypatch.setattr(module, "record_speed", lambda *_: None)
    monkeypatch.setattr(task_sizes, "_seconds_per_work", speeds(1.0))
    inputs, prompts = torch.randn(3, 5, HIDDEN), torch.randn(BLOCKS, 1, 2, HIDDEN)
    gradient = torch.randn(3, 5, HIDDEN)
    leaf = inputs.clone().requires_grad_()
    leaves = [prompt.expand(3, -1, -1).clone().requires_grad_() for prompt in prompts]
    hidden = leaf
    for backend, prompt in zip(backends, leaves, strict=True):
        hidden = backend.compute(hidden + torch.nn.functional.pad(prompt, (0, 0, 0, 3)))
    expected = torch.autograd.grad(hidden, [leaf, *leaves], gradient)
    options: dict[str, Any] = {"requested_backends": backends, "prioritizer": Prioritizer()}
    found = asyncio.run(run_forward(inputs.clone(), prompts, **options))
    of_inputs, of_prompts = asyncio.run(run_backward(inputs.clone(), gradient, prompts, **options))
    torch.testing.assert_close(found, hidden.detach())
    torch.testing.assert_close(of_inputs, expected[0])
    torch.testing.assert_close(of_prompts, torch.stack(expected[1:]))


@pytest.mark.parametrize(
    ("is_urgent", "seconds", "sizes"), [(False, 100.0, [BLOCKS]), (True, 100.0, [6, 4, 2]), (False, 0.0, [6, 4, 2])]
)
def test_a_forward_is_one_task_that_ends_early_if_a_step_waits_or_after_a_while(
    is_urgent: bool, seconds: float, sizes: list[int], backends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_runner, "FORWARD_SECONDS", seconds)
    monkeypatch.setattr(task_sizes, "TASK_SECONDS", 2.5 * 15)
    for module in (block_runner, server_tasks):
        monkeypatch.setattr(module, "record_speed", lambda *_: None)
    monkeypatch.setattr(task_sizes, "_seconds_per_work", speeds(1.0))
    monkeypatch.setattr(backends[0].runner, "_is_urgent", lambda: is_urgent)
    inputs, prompts, rows = torch.randn(3, 5, HIDDEN), torch.randn(BLOCKS, 1, 2, HIDDEN), torch.tensor([4, 9])
    options: dict[str, Any] = {"requested_backends": backends, "prioritizer": Prioritizer()}
    hidden = inputs
    for backend, prompt in zip(backends, prompts, strict=True):
        hidden = backend.compute(hidden + torch.nn.functional.pad(prompt.expand(3, -1, -1), (0, 0, 0, 3)))
    found = asyncio.run(run_forward(inputs.clone(), prompts, rows=rows, **options))
    torch.testing.assert_close(found, hidden.detach().flatten(0, 1)[rows].unsqueeze(0))
    assert backends[0].sizes == sizes


def test_the_oldest_forward_goes_first_whatever_came_meanwhile(backends: list[Any]) -> None:
    options: dict[str, Any] = {"requested_backends": backends, "prioritizer": Prioritizer()}
    for _ in range(2):
        asyncio.run(run_forward(torch.zeros(1, 4, HIDDEN), torch.empty(0), **options))
    first, second = backends[0].forward_pool.priorities
    assert 2.0 < first < second < 2.01


def test_handlers_know_what_others_have_measured(backends: list[Any]) -> None:
    other = multiprocessing.get_context("fork").Process(
        target=task_sizes.record_speed, args=("forward", 3.0, torch.zeros(1, 4, HIDDEN), 2)
    )
    other.start()
    other.join()
    assert task_sizes._seconds_per_work["forward"].value == 3.0 / 8


@pytest.mark.parametrize(
    ("hidden", "prompts", "words"),
    [((1, 2, HIDDEN), (BLOCKS - 1, 1, 2, HIDDEN), "5 prompts for 6 blocks"), ((2, HIDDEN), (0,), "2 dimensions")],
)
def test_what_makes_no_sense_is_refused(
    hidden: tuple[int, ...], prompts: tuple[int, ...], words: str, backends: list[Any]
) -> None:
    with pytest.raises(ValueError, match=words):
        asyncio.run(
            run_forward(
                torch.zeros(hidden), torch.zeros(prompts), requested_backends=backends, prioritizer=Prioritizer()
            )
        )
