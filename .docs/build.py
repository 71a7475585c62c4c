"""Builds the documentation site: `uv run python .docs/build.py FOLDER`.

Its pages are the READMEs as they stand in the repository, a page for each group of options, made of the parsers, and
the reference of the public API, made of docstrings. A link that leads nowhere is an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from dist_eval.options.commandline import EVALUATION, build_parser
from dist_eval.options.harness import HARNESS
from dist_eval.planning.config import PLAN
from dist_eval.tuning.config import COMMAND as TUNING

ROOT = Path(__file__).parents[1]
COMMANDS = {"run": EVALUATION, "tune": TUNING, "harness": HARNESS, "plan": PLAN}
# What is public says the docstring of the package
MODULES = ("dist_eval", *(f"dist_eval.{name}" for name in ("demo", "errors", "schema", "statistics")))
LAUNCH = [f"launch/{name}/README" for name in ("swarm", "multinode", "slurm", "kubernetes", "petals-2.2")]
SECTIONS = {
    "Evaluating": [f"dist_eval/{name}/README" for name in ("data", "model", "metrics", "harness", "tuning", "api")],
    "Results": [f"dist_eval/{name}/README" for name in ("runs", "report", "statistics", "analysis")],
    "Swarms and clusters": ["dist_eval/swarm/README", "dist_eval/planning/README", "launch/README", *LAUNCH],
    "Options": [f"options/{command}" for command in COMMANDS],
    "Reference": [f"reference/{module}" for module in MODULES],
    "More": ["benchmarks/README", ".github/CONTRIBUTING"],
}


def main() -> int:
    """Writes the site to the folder that is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        write_pages(source)
        command = ["-q", "-W", "--keep-going", "-j", "auto", "-c", str(ROOT / ".docs")]
        status = build_main([*command, "-d", str(source / ".cache"), str(source), str(folder)])
    if not status:
        shutil.copyfile(folder / "README.html", folder / "index.html")
    return status


def write_pages(source: Path) -> None:
    """Writes the pages to a folder, as Sphinx reads them."""
    for file in tracked():
        target = source / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, target)
    readme = (source / "README.md").read_text(encoding="utf-8")
    contents = [toctree(pages, ":hidden:", f":caption: {title}") for title, pages in SECTIONS.items()]
    (source / "README.md").write_text("".join([readme, *contents]), encoding="utf-8")
    for command in COMMANDS:
        write_options(source / "options", command)
    for module in MODULES:
        page = source / "reference" / f"{module}.rst"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"{module}\n{'=' * len(module)}\n\n.. automodule:: {module}\n   :members:\n", encoding="utf-8")


def tracked() -> list[str]:
    """Returns the files of the repository that READMEs may link to."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [file for file in listed.split("\0") if (ROOT / file).is_file() and not file.endswith(".safetensors")]


def toctree(pages: list[str], *options: str) -> str:
    """Returns a part of the navigation, in MyST's Markdown."""
    return "\n".join(["", "", "```{toctree}", *options, "", *(f"/{page}" for page in pages), "```", ""])


def write_options(folder: Path, command: str) -> None:
    """Writes a page about each group of options of a command, and one that lists them."""
    groups = []
    for group in build_parser(COMMANDS[command])._action_groups:
        options = [option for option in group._group_actions if option.help != argparse.SUPPRESS]
        name = re.sub(r"[^a-z]+", "-", str(group.title).lower()).strip("-")
        if options and name != "options":
            groups.append(f"options/{command}/{name}")
            page = folder / command / f"{name}.md"
            page.parent.mkdir(parents=True, exist_ok=True)
            lines = [f"# {str(group.title).capitalize()}", "", group.description or "", ""]
            lines += [f"`{synopsis(option)}`\n: {option.help}\n" for option in options]
            page.write_text("\n".join(lines), encoding="utf-8")
    index = f"# dist-eval {command}\n\n{COMMANDS[command].description}{toctree(groups)}"
    (folder / f"{command}.md").write_text(index, encoding="utf-8")


def synopsis(option: argparse.Action) -> str:
    """Returns an option as `--help` shows it, with its value."""
    value = option.metavar or ("{" + ",".join(map(str, option.choices)) + "}" if option.choices else "")
    return " ".join([", ".join(option.option_strings), *([str(value)] if value and option.nargs != 0 else [])])


if __name__ == "__main__":
    sys.exit(main())
