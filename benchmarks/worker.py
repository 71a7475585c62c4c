"""Calls a function in a process of its own: `python -m benchmarks.worker MODULE:FUNCTION FOLDER`.

The arguments are in `task.json` of the folder; each rank writes what the function returns to `result-RANK.json`. The
first argument of the function is a private folder, for sockets and other files.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from dist_eval.process.lifetime import die_with_parent, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries


def main() -> None:
    """Calls the function and ends the process."""
    die_with_parent()
    silence_libraries()
    folder = Path(sys.argv[2])
    module, _, function = sys.argv[1].partition(":")
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    code = 1
    try:
        with workspace() as scratch_dir, temporary_files_in(scratch_dir):
            result = getattr(importlib.import_module(module), function)(scratch_dir, **task)
            path = folder / f"result-{os.environ.get('RANK', 0)}.json"
            path.write_text(json.dumps(result), encoding="utf-8")
            code = 0
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # hivemind's threads would keep the process alive, and other ranks would wait


if __name__ == "__main__":
    main()
