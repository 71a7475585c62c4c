"""Opens a workspace, leaves a socket, processes and shared memory, says what they are, and waits to be killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from dist_eval.process.lifetime import helpers_die_with_us, workspace

SLEEP = "import sys, time; time.sleep(600)"


def main() -> None:
    with workspace() as folder:
        named = subprocess.Popen([sys.executable, "-c", SLEEP, str(folder)], start_new_session=True)
        with helpers_die_with_us():
            forked = os.fork()
        if forked == 0:
            time.sleep(600)
            os._exit(0)
        socket.socket(socket.AF_UNIX).bind(str(folder / "left.sock"))
        shared = [Path(f"/dev/shm/torch_{process}_{os.getpid()}_0") for process in (os.getpid(), named.pid, forked)]
        for path in shared:
            path.touch()
        left = {"folder": str(folder), "processes": [named.pid, forked], "shared": [str(path) for path in shared]}
        print(json.dumps(left), flush=True)
        try:
            if sys.argv[1:] == ["wait"]:
                time.sleep(600)
            elif sys.argv[1:] == ["fail"]:
                raise RuntimeError("a failure with an open workspace")
        finally:
            for path in (shared[0], shared[2]):  # as torch does
                path.unlink()


if __name__ == "__main__":
    main()
