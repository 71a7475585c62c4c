"""Opens a workspace, leaves a socket and processes in it, prints their ids, and waits to be killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

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
        print(json.dumps({"folder": str(folder), "processes": [named.pid, forked]}), flush=True)
        if sys.argv[1:] == ["wait"]:
            time.sleep(600)
        elif sys.argv[1:] == ["fail"]:
            raise RuntimeError("a failure with an open workspace")


if __name__ == "__main__":
    main()
