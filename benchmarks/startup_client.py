"""The minimal client of a swarm: imports hivemind and a class of transformers' models, connects, and records the times.

python -m benchmarks.startup_client FOLDER PEER...
"""

from __future__ import annotations

import time

BEGAN = time.time()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from dist_eval.process.lifetime import die_with_parent, helpers_die_with_us, temporary_files_in, workspace  # noqa: E402
from dist_eval.process.logging_setup import silence_libraries  # noqa: E402
from dist_eval.swarm.hivemind_compat import prepare_hivemind  # noqa: E402


def main() -> None:
    """Connects, writes the times, and disconnects."""
    die_with_parent()
    silence_libraries()
    folder, peers = Path(sys.argv[1]), sys.argv[2:]
    with workspace() as scratch_dir, temporary_files_in(scratch_dir):
        prepare_hivemind(sockets=scratch_dir)
        import hivemind
        from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: F401

        from dist_eval.swarm.client import leave_swarm

        imported = time.time()
        with helpers_die_with_us():
            dht = hivemind.DHT(initial_peers=peers, client_mode=True, num_workers=32, start=True)
        moments = {"began": BEGAN, "imported": imported, "connected": time.time()}
        (folder / f"client-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(moments), encoding="utf-8")
        leave_swarm(dht)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # everything is closed; see `temporary_files_in`
