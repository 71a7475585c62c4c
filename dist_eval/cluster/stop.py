"""`python -m dist_eval.cluster.stop` with the options of a run: stops that run gracefully, on all of its hosts.

For scripts that must forward a signal. The run's folder follows from its options.
"""

from __future__ import annotations

from collections.abc import Sequence

from dist_eval.arguments.commandline import run_command
from dist_eval.distributed.stop import leave_stop_file
from dist_eval.errors import os_reason, print_error
from dist_eval.options.config import EVALUATION, EvaluationConfig
from dist_eval.process.programs import run_program
from dist_eval.runs.outcome import read_outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Stops the run."""
    return run_command(EVALUATION, _stop, arguments)


def _stop(config: EvaluationConfig) -> int:
    folder = config.output_folder
    outcome = read_outcome(folder)
    if outcome.status != "running":
        why = f" ({outcome.reason})" if outcome.reason else ""
        print_error(f"no run is active in {folder}: its status is {outcome.status}{why}")
        return 1
    try:
        leave_stop_file(folder)
    except OSError as error:
        print_error(f"the run in {folder} cannot be stopped: {os_reason(error)}")
        return 1
    print_error(f"the run in {folder} has been asked to stop")
    return 0


if __name__ == "__main__":
    run_program(main)
