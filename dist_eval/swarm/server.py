"""One Petals server as a process: `python -m dist_eval.swarm.server WORKSPACE [petals.cli.run_server options]`.

It is Petals' own server. Around it: the bridge to hivemind, no request to a package index for a newer version, and
an end together with the process that started it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dist_eval.lifetime import die_with_parent, helpers_die_with_us

WAIT_SECONDS = 120.0


def main() -> None:
    """Runs a server until it is told to end; the first argument is the workspace for its sockets."""
    die_with_parent()
    workspace = Path(sys.argv.pop(1))
    from dist_eval.swarm.bridge import import_petals

    import_petals(sockets=workspace)
    from petals.cli import run_server

    _wait_for_peers(sys.argv)

    run_server.validate_version = lambda: None  # it calls out to the network without a time limit
    with helpers_die_with_us():
        run_server.main()


def _wait_for_peers(arguments: list[str]) -> None:
    """Servers of one private swarm start at the same time: the later ones wait for the first to listen."""
    from dist_eval.swarm.client import wait_until_listening

    if "--initial_peers" in arguments:
        wait_until_listening([arguments[arguments.index("--initial_peers") + 1]], time.monotonic() + WAIT_SECONDS)


if __name__ == "__main__":
    main()
