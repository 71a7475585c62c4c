"""`dist-eval convert FILE... --model MODEL --output FOLDER`: converts older exports to a checkpoint (see `exports`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import REQUIRED, Options, argument, option
from dist_eval.errors import CheckpointError, translating_os_errors
from dist_eval.process.programs import COMPLETE, run_program
from dist_eval.tables import format_count


@dataclass(kw_only=True)
class ConvertOptions(Options):
    """The options of `dist-eval convert`."""

    files: list[Path] = argument("files written by torch.save", "FILE")
    model: str = option(REQUIRED, "base model: folder or hub name", metavar="MODEL")
    output: Path = option(REQUIRED, "the checkpoint; must not exist", metavar="FOLDER")
    label_names: list[str] | None = option(None, "names of the classes (default: LABEL_0, ...)", metavar="NAME")


COMMAND = Command(
    program="dist-eval convert",
    config=ConvertOptions,
    description="Converts pickled prompts and heads without running code in them.",
)


def convert_files(options: ConvertOptions) -> int:
    """Converts the files, and returns the exit status."""
    from dist_eval.tuning.exports import convert

    if options.output.exists():
        raise CheckpointError(f"{options.output} already exists. Choose another --output.")
    tuned, left = convert(options.files, options.model, options.label_names)
    with translating_os_errors(CheckpointError, f"{options.output} cannot be written"):
        tuned.save(options.output)
    print(
        f"{options.output}: {format_count(tuned.num_labels, 'class', 'classes')}, tuning_mode "
        f"{tuned.tuning_mode or 'none'}, "
        f"{format_count(tuned.pre_seq_len, 'prompt token')}" + (f". Left out: {', '.join(left[:5])}" if left else "")
        + (f" and {len(left) - 5} more" if len(left) > 5 else "")
    )  # fmt: skip
    return COMPLETE


if __name__ == "__main__":
    run_program(lambda: run_command(COMMAND, convert_files))
