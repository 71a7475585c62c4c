"""One Petals server as a process: `python -m dist_eval.swarm.server WORKSPACE [petals.cli.run_server options]`.

It is Petals' server with a few changes: hivemind's missing names are put back, no package index is asked for a newer
version, an adapter may be a folder, a first peer that is itself just starting is waited for, and the server ends with
the process that started it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dist_eval.process.lifetime import die_with_parent, helpers_die_with_us
from dist_eval.process.patching import patched

WAIT_SECONDS = 120.0
_RETRY_SECONDS = 0.5


def main() -> None:
    """Runs a server until it is stopped; the first argument is the workspace for its sockets."""
    die_with_parent()
    workspace = Path(sys.argv.pop(1))
    from dist_eval.swarm.hivemind_compat import import_petals

    import_petals(sockets=workspace)
    _import_bitsandbytes()
    if "--adapters" in sys.argv:
        _accept_folders_as_adapters()
    from hivemind.p2p import P2PDaemonError
    from petals.cli import run_server

    from dist_eval.swarm.client import wait_until_listening

    run_server.validate_version = lambda: None  # it accesses the network without a timeout
    deadline = time.monotonic() + WAIT_SECONDS
    if "--initial_peers" in sys.argv:
        begin = end = sys.argv.index("--initial_peers") + 1
        while end < len(sys.argv) and not sys.argv[end].startswith("--"):
            end += 1
        sys.argv[begin:end] = wait_until_listening(sys.argv[begin:end], deadline) or sys.argv[begin:end]
    with helpers_die_with_us():
        while True:
            try:
                return run_server.main()
            except P2PDaemonError as error:
                # the first peer listens a moment before it answers
                if "bootstrap" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)


def _import_bitsandbytes() -> None:
    """Imports it before Petals does, with `torch.compile` disabled.

    It would compile its quantized operations on import, which takes half of a server's start. A private swarm does not
    quantize.
    """
    import torch

    with patched(torch, "compile", lambda function, **_: function):
        import bitsandbytes  # noqa: F401


def _accept_folders_as_adapters() -> None:
    """Lets Petals look into a folder for an adapter's safetensors; it would ask the hub, whose names these are not."""
    from petals.utils import peft

    is_safe_on_hub = peft.check_peft_repository

    def is_safe(name: str) -> bool:
        folder = Path(name)
        return (folder / peft.SAFETENSORS_WEIGHTS_NAME).is_file() if folder.is_dir() else is_safe_on_hub(name)

    peft.check_peft_repository = is_safe


if __name__ == "__main__":
    main()
