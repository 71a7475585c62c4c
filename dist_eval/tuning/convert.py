"""`dist-eval convert FILE... --model MODEL --output FOLDER`: converts older exports to a checkpoint (see `exports`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from dist_eval.errors import CheckpointError, EvaluationError, print_error, translating_os_errors
from dist_eval.process.programs import COMPLETE, FAILED, ArgumentParser, run_program
from dist_eval.tables import format_count


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser."""
    parser = ArgumentParser(
        prog="dist-eval convert",
        description="Converts pickled prompts and heads without running code in them.",
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file written by torch.save")
    parser.add_argument("--model", required=True, help="base model: folder or hub name")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="the checkpoint; must not exist")
    parser.add_argument("--label-names", nargs="+", metavar="NAME", help="names of the classes (default: LABEL_0, ...)")
    return parser


def main() -> int:
    """Runs the command line and returns its exit status: 0, or 1 if the files cannot be converted."""
    options = build_parser().parse_args()
    from dist_eval.tuning.exports import convert

    try:
        if options.output.exists():
            raise CheckpointError(f"{options.output} already exists. Choose another --output.")
        tuned, left = convert(options.files, options.model, options.label_names)
        with translating_os_errors(CheckpointError, f"{options.output} cannot be written"):
            tuned.save(options.output)
    except EvaluationError as error:
        print_error(str(error), "dist-eval convert")
        return FAILED
    print(
        f"{options.output}: {format_count(tuned.num_labels, 'class', 'classes')}, tuning_mode "
        f"{tuned.tuning_mode or 'none'}, "
        f"{format_count(tuned.pre_seq_len, 'prompt token')}" + (f". Left out: {', '.join(left[:5])}" if left else "")
        + (f" and {len(left) - 5} more" if len(left) > 5 else "")
    )  # fmt: skip
    return COMPLETE


if __name__ == "__main__":
    run_program(main)
