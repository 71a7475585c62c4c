"""A Petals server that waits instead of computing: `python -m benchmarks.waiting_server FILE [arguments of a server]`.

Transport, handlers, queues and the order of work are Petals' own. Only forwards and steps of a block are replaced: they
sleep and return their input. Like a GPU, it processes one request at a time and leaves the processor idle. Its
announcement follows from its speed at the start, like a server's own measurement.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from benchmarks.models import Model


@dataclass(frozen=True)
class Speed:
    """A server's time for a request, for all its blocks together.

    Attributes:
        per_request: seconds.
        per_token: seconds.
    """

    per_request: float
    per_token: float

    def seconds(self, tokens: int) -> float:
        """Returns the seconds for a request with this number of tokens."""
        return self.per_request + self.per_token * tokens


_MEASURED_TOKENS = 1024  # with as many tokens Petals' servers measure what they announce


@contextmanager
def waiting_swarm(
    model: Model, scratch_dir: Path, spans: Sequence[tuple[int, int]], announced: Sequence[Speed] = ()
) -> Iterator[tuple[list[str], Callable[[Sequence[Speed], float], None]]]:
    """Opens a swarm of such servers behind a delay proxy.

    Args:
        model: the model to serve.
        scratch_dir: folder for temporary files.
        spans: the blocks of each server.
        announced: the speed that each server announces; by default all announce the same one, which is far too high.

    Yields:
        The addresses of the swarm, and a function that sets the speed of each server and the round trip in seconds.
    """
    from benchmarks.swarms import distant_swarm_of

    file = scratch_dir / f"speeds-{len(list(scratch_dir.iterdir()))}.json"

    def set_speeds(speeds: Sequence[Speed]) -> None:
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps([asdict(speed) for speed in speeds]), encoding="utf-8")
        draft.replace(file)

    set_speeds(announced or [Speed(0.0, 1e-6)] * len(spans))
    program = ("-m", "benchmarks.waiting_server", str(file))
    with distant_swarm_of(model, scratch_dir, spans=spans, program=program) as (swarm, proxy):

        def adjust(speeds: Sequence[Speed], round_trip: float) -> None:
            set_speeds(speeds)
            proxy.set_round_trip(round_trip)

        yield swarm.initial_peers, adjust


def main() -> None:
    """Runs a server until it is stopped."""
    file = Path(sys.argv.pop(1))
    start, _, end = sys.argv[sys.argv.index("--block_indices") + 1].partition(":")
    number = int(sys.argv[sys.argv.index("--identity_path") + 1].rpartition("-")[2])

    from dist_eval.petals.client.hivemind_compat import prepare_hivemind
    from dist_eval.petals.server.petals_server import import_server

    prepare_hivemind(sockets=Path(sys.argv[1]))
    import_server()
    from petals.server import server as petals_server

    from dist_eval.petals.server import server

    blocks = int(end) - int(start)

    def block_seconds(tokens: int) -> float:
        return Speed(**json.loads(file.read_bytes())[number]).seconds(tokens) / blocks

    def forward(self: Any, hidden: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        time.sleep(block_seconds(hidden.shape[0] * hidden.shape[1]))
        return (hidden.clone(),)

    def inference_step(self: Any, hidden: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        return forward(self, hidden)

    def announced(*_: Any, **__: Any) -> dict[str, float]:
        rate = _MEASURED_TOKENS / block_seconds(_MEASURED_TOKENS)
        return {"forward_rps": rate, "inference_rps": rate, "throughput": rate / ((blocks + 1) / 2)}

    petals_server.TransformerBackend.forward = forward
    petals_server.TransformerBackend.inference_step = inference_step
    petals_server.get_server_throughput = announced
    sys.argv[sys.argv.index("--throughput") + 1] = "eval"
    server.main()


if __name__ == "__main__":
    main()
