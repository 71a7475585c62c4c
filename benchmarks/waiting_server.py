"""A Petals server that waits instead of computing: `python -m benchmarks.waiting_server FILE [arguments of a server]`.

Transport, handlers, queues and the order of work are Petals' own. Only the forward of a block is replaced: it sleeps
and returns its input. Like a GPU, it works on one request at a time and leaves the processor alone. What it announces
follows from its speed when it is started, as a server's own measurement would.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Speed:
    """How long a server takes for a request, for all its blocks together.

    Attributes:
        per_request: seconds.
        per_token: seconds.
    """

    per_request: float
    per_token: float

    def seconds(self, tokens: int) -> float:
        """Returns the seconds for a request with this number of tokens."""
        return self.per_request + self.per_token * tokens


_MEASURED_TOKENS = 1024
"""With as many tokens Petals' servers measure what they announce."""


def set_speeds(file: Path, speeds: Sequence[Speed]) -> None:
    """Sets the speeds of running servers, in the order of the swarm's spans.

    Args:
        file: what they were started with.
        speeds: of all servers.
    """
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps([asdict(speed) for speed in speeds]), encoding="utf-8")
    draft.replace(file)


def main() -> None:
    """Runs a server until it is stopped."""
    file = Path(sys.argv.pop(1))
    start, _, end = sys.argv[sys.argv.index("--block_indices") + 1].partition(":")
    number = int(sys.argv[sys.argv.index("--identity_path") + 1].rpartition("-")[2])

    from dist_eval.swarm.hivemind_compat import prepare_hivemind
    from dist_eval.swarm.petals_server import import_server

    prepare_hivemind(sockets=Path(sys.argv[1]))
    import_server()
    from petals.server import server as petals_server

    from dist_eval.swarm import server

    blocks = int(end) - int(start)

    def block_seconds(tokens: int) -> float:
        return Speed(**json.loads(file.read_bytes())[number]).seconds(tokens) / blocks

    def forward(self: Any, hidden: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        time.sleep(block_seconds(hidden.shape[0] * hidden.shape[1]))
        return (hidden.clone(),)

    def announced(*_: Any, **__: Any) -> dict[str, float]:
        rate = _MEASURED_TOKENS / block_seconds(_MEASURED_TOKENS)
        return {"forward_rps": rate, "inference_rps": rate, "throughput": rate / ((blocks + 1) / 2)}

    petals_server.TransformerBackend.forward = forward
    petals_server.get_server_throughput = announced
    sys.argv[sys.argv.index("--throughput") + 1] = "eval"
    server.main()


if __name__ == "__main__":
    main()
