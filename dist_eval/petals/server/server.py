"""One Petals server as a process: `python -m dist_eval.petals.server.server WORKSPACE [petals.cli.run_server options]`.

It is Petals' server with a few changes: it restores hivemind's missing names, asks no package index for newer versions,
waits for a first peer that is still starting, and ends with the process that started it. Its blocks are those of
transformers (`petals_server.py`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dist_eval.process.lifetime import die_with_parent, helpers_die_with_us

WAIT_SECONDS = 120.0
_RETRY_SECONDS, _PROBE_SECONDS = 0.5, 2.0


def main() -> None:
    """Runs a server until it is stopped; the first argument is the workspace for its sockets."""
    die_with_parent()
    workspace = Path(sys.argv.pop(1))
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=workspace)
    from dist_eval.petals.server.petals_server import import_server

    run_server = import_server()
    from hivemind.p2p import P2PDaemonError

    deadline = time.monotonic() + WAIT_SECONDS
    peers = _wait_for_peers(deadline)
    with helpers_die_with_us():
        while True:
            try:
                return run_server.main()
            except P2PDaemonError as error:
                # the first peer starts to listen a moment before it answers
                if "bootstrap" not in str(error):
                    raise
                if time.monotonic() > deadline:
                    sys.exit(f"No server at {', '.join(peers)} has this identity: copy addresses that servers print.")
                time.sleep(_RETRY_SECONDS)


def _wait_for_peers(deadline: float) -> list[str]:
    """Waits for the peers to join, and keeps only listening ones on the command line."""
    from dist_eval.petals.client.client import wait_until_listening
    from dist_eval.petals.client.reachability import why_unreachable

    if "--initial_peers" not in sys.argv:
        return []
    begin = end = sys.argv.index("--initial_peers") + 1
    while end < len(sys.argv) and not sys.argv[end].startswith("--"):
        end += 1
    peers = sys.argv[begin:end]
    sys.argv[begin:end] = listening = wait_until_listening(peers, deadline)
    if not listening:
        why = why_unreachable(peers[0], _PROBE_SECONDS) or "nothing listened there"
        sys.exit(f"None of the peers to join answered within {WAIT_SECONDS:g} s ({why}): {', '.join(peers)}.")
    return peers


if __name__ == "__main__":
    main()
