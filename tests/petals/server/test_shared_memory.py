"""Tensors that pass between processes by address, and slots that nobody gets while they are used."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch
from conftest import wait_for

from dist_eval.petals.client.hivemind_compat import prepare_hivemind
from dist_eval.petals.server.petals_server import import_server
from dist_eval.petals.server.shared_memory import Place, SharedMemory
from dist_eval.petals.server.task_pool import task_pool_class

SLOT = 1 << 16


@pytest.fixture
def memory() -> SharedMemory:
    memory = SharedMemory(SLOT, 3 * SLOT, 1)
    memory.claim(0, 1)
    return memory


def free_slots(memory: SharedMemory) -> int:
    taken = [memory.take() for _ in range(4)]
    return sum(one is not None for one in taken)


def test_a_tensor_is_seen_by_a_process_that_was_forked_and_by_its_parent(memory: SharedMemory) -> None:
    values = [torch.arange(10).view(2, 5).t(), "text", torch.ones(3, dtype=torch.bfloat16), torch.empty(2, 0)]
    put = memory.put(values)
    places = [memory.place_of(value) for value in put]
    assert places[1] == "text" and all(isinstance(place, Place) for place in places[::2])
    child = os.fork()
    if not child:
        try:
            seen = [memory.at(place) for place in places]
            assert all(torch.equal(one, other) for one, other in zip(seen[::2], values[::2], strict=True))
            memory.replace(places[0], torch.full((2, 2), 7.0))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(memory.at(places[0]._replace(shape=(2, 2), dtype=torch.float32)), torch.full((2, 2), 7.0))


def test_what_does_not_fit_stays_where_it_is(memory: SharedMemory) -> None:
    large = torch.zeros(SLOT + 1, dtype=torch.uint8)
    assert memory.place_of(memory.put([large])[0]).data_ptr() == large.data_ptr()
    (small,) = memory.put([torch.zeros(4)])
    assert memory.replace(memory.place_of(small), large) is large
    assert memory.replace("elsewhere", large) is large


def test_a_slot_is_free_once_nothing_refers_to_its_bytes(memory: SharedMemory) -> None:
    assert free_slots(memory) == 3
    (tensor,) = memory.put([torch.arange(6.0)])
    place, part = memory.place_of(tensor), tensor[2:].view(2, 2)
    again = memory.at(place)
    del tensor
    assert free_slots(memory) == 2
    del part
    assert free_slots(memory) == 2 and again[5] == 5.0
    del again
    assert free_slots(memory) == 3
    first, second = memory.take(), memory.take()
    assert memory.take() is not None and first is not None and second is not None
    assert free_slots(memory) == 1


def test_without_memory_there_are_no_slots() -> None:
    memory = SharedMemory(SLOT, SLOT - 1, 1)
    memory.claim(0, 1)
    assert memory.take() is None
    tensor = torch.ones(3)
    assert memory.put([tensor])[0].data_ptr() == tensor.data_ptr()


def test_a_slot_stays_taken_while_a_task_uses_it_that_nobody_waits_for(memory: SharedMemory, tmp_path: Path) -> None:
    prepare_hivemind(sockets=tmp_path)
    import_server()
    pool = task_pool_class()(memory, lambda *_: None, 64, "test", device=torch.device("cpu"))
    resume, let_resume = os.pipe()
    child = os.fork()
    if not child:
        try:
            pool.start()
            uid, (hidden, adapter, seconds) = pool.load_batch_to_runtime()
            os.read(resume, 1)
            pool.send_outputs_from_runtime(uid, [hidden * 2, adapter, seconds + 1])
            uid, (hidden, *_) = pool.load_batch_to_runtime()
            pool.send_outputs_from_runtime(uid, [hidden * 2])
            os._exit(0)
        finally:
            os._exit(1)

    async def give_up() -> None:
        task = asyncio.create_task(pool.compute(torch.ones(1, 4, 8), "adapter", 0.5, priority=1.0))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(give_up())
    assert free_slots(memory) == 2
    os.write(let_resume, b"!")
    assert wait_for(lambda: free_slots(memory) == 3, 20.0)
    (outputs,) = asyncio.run(pool.compute(torch.ones(1, 4, 8), priority=1.0))
    assert isinstance(memory.place_of(outputs), Place) and torch.equal(outputs, torch.full((1, 4, 8), 2.0))
    assert os.waitpid(child, 0)[1] == 0
    for end in (resume, let_resume):
        os.close(end)
