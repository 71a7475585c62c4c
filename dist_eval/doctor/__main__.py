"""`torchrun --nproc_per_node=N -m dist_eval.doctor`: checks whether a run with these options would work."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from typing import NoReturn

from dist_eval.arguments.commandline import end_for_wrong_options, parse_args
from dist_eval.doctor.config import DOCTOR, PROBE_PREFIX, DoctorConfig
from dist_eval.errors import ConfigError
from dist_eval.process.lifetime import die_with_parent, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries
from dist_eval.process.patching import gc_paused
from dist_eval.process.programs import INTERRUPTED, status_after_output, tolerate_broken_output


def _examine(config: DoctorConfig) -> int:
    probe = config.output_folder / f"{PROBE_PREFIX}{uuid.uuid4().hex}"
    with workspace(probe) as scratch_dir, temporary_files_in(scratch_dir):
        with gc_paused():  # imports of libraries may leave temporary files
            from dist_eval.doctor.examination import examine_run

        return examine_run(config, scratch_dir, probe)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process: with 0, 1 if the run would fail, 2 if an option is invalid."""
    tolerate_broken_output()
    try:
        config = parse_args(sys.argv[1:] if arguments is None else arguments, DOCTOR)
    except ConfigError as error:
        end_for_wrong_options(error)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
    if not config.verbose:
        silence_libraries()
    try:
        status = _examine(config)
    except KeyboardInterrupt:
        status = INTERRUPTED
    os._exit(status_after_output(status))  # threads that still wait for an answer must not delay the exit


if __name__ == "__main__":
    main()
