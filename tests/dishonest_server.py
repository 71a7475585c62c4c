"""A Petals server that announces a high speed and lies in the way that a file says: `conftest.ForkedSwarm` starts it.

The file is called `lie-N` and lies beside the server's identity. Without it, or if it is empty, the server is honest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import torch

SILENT, TOO_LARGE, NOT_FINITE_ONCE_CAST, REVERSED = "silent", "too large", "not finite once cast", "reversed"
MIRRORED = "mirrored"
"""Of the outputs of its own blocks, which it may pass on."""

WRONG_SHAPE, NOT_FINITE, CLOSING = "wrong shape", "not finite", "closing"
"""Of steps of sessions; the last one closes a session after two of them."""

LATE, ANOTHERS = "late", "another's"
"""Of steps of one token: what the step before, or one of another session, has found. Such an answer looks right."""

_ANNOUNCED = {"forward_rps": 1e8, "inference_rps": 1e8}  # the most that is plausible


def _lie(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _make_dishonest(file: Path) -> None:
    from petals.server import server

    from dist_eval.petals.client.payload import Payload
    from dist_eval.petals.server import chain
    from dist_eval.petals.server import handler as own_handler

    declare = server.declare_active_modules

    def declare_fast(dht: Any, uids: Any, info: Any, **options: Any) -> Any:
        return declare(dht, uids, dataclasses.replace(info, **_ANNOUNCED), **options)

    def lying(method: Any) -> Any:
        @functools.wraps(method)
        async def answer(self: Any, request: Any, context: Any) -> Any:
            lie = _lie(file)
            if lie == SILENT:
                await asyncio.sleep(3600)
            if lie == TOO_LARGE:
                raise ValueError("Task size greater than max_batch_size (2048), it can't be processed")
            honest = await method(self, request, context)
            if lie == NOT_FINITE_ONCE_CAST:
                infinite = [torch.full(tensor.tensor().shape, 1e300, dtype=torch.float64) for tensor in honest.tensors]
                return honest._replace(tensors=list(map(Payload.of, infinite)))
            if lie == REVERSED and request.uid.split()[0].endswith(".0"):  # only what begins at the first block
                first, *others = honest.tensors
                return honest._replace(tensors=[Payload.of(first.tensor().flip(-1)), *others])
            return honest

        return answer

    forward = chain.run_forward

    async def lying_forward(*tensors: torch.Tensor, **arguments: Any) -> torch.Tensor:
        outputs = await forward(*tensors, **arguments)
        return outputs.flip(-1) if _lie(file) == MIRRORED else outputs

    steps = own_handler.run_inference
    found: list[torch.Tensor] = []  # the outputs of the steps of all sessions so far

    async def lying_steps(*requests: Any, **arguments: Any) -> Any:
        count, before = 0, None
        async for honest, may_push in steps(*requests, **arguments):
            lie, outputs = _lie(file), honest
            size, count = honest.shape, count + 1
            if lie == WRONG_SHAPE:
                outputs = torch.zeros(size[0], size[1] + 1, size[2])
            if lie == NOT_FINITE_ONCE_CAST:
                outputs = torch.full(size, 1e300, dtype=torch.float64)
            if lie == NOT_FINITE:
                outputs = torch.full(size, torch.nan)
            if lie == CLOSING and count > 2:
                return
            if lie == LATE and before is not None and before.shape == size:
                outputs = before
            if lie == ANOTHERS:
                outputs = next((others for others in found if others.shape == size), outputs)
            yield outputs, may_push
            before = honest
            if size[1] == 1:
                found.append(honest)

    own_handler.run_forward = chain.run_forward = lying_forward
    own_handler.run_inference = lying_steps
    server.declare_active_modules = declare_fast
    for name in ("_forward", "_backward"):
        setattr(server.TransformerConnectionHandler, name, lying(getattr(server.TransformerConnectionHandler, name)))


def main() -> None:
    """Runs the server; the arguments are those of `dist_eval.petals.server.server`."""
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind
    from dist_eval.petals.server import server
    from dist_eval.petals.server.petals_server import import_server

    identity = Path(sys.argv[sys.argv.index("--identity_path") + 1])
    prepare_hivemind(sockets=Path(sys.argv[1]))
    import_server()
    _make_dishonest(identity.with_name(identity.name.replace("identity", "lie")))
    server.main()


if __name__ == "__main__":
    main()
