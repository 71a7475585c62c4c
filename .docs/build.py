"""Builds the documentation site: `uv run python .docs/build.py FOLDER`.

Its pages are the READMEs, those of .github, the options of each command from the parsers, and the reference of the
public API from docstrings. A dead link is an error.
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

from dist_eval.arguments.commandline import build_parser
from dist_eval.cli.main import COMMANDS, parser_of
from dist_eval.petals.__main__ import COMMANDS as COMMANDS_OF_SWARM

ROOT = Path(__file__).parents[1]
PARSERS = {name: parser_of(program) for name, program in COMMANDS.items()}
PARSERS |= {f"swarm {name}": build_parser(command) for name, (command, _) in COMMANDS_OF_SWARM.items()}
# What is public says the docstring of the package
MODULES = ("dist_eval", *(f"dist_eval.{name}" for name in ("demo", "errors", "schema", "statistics")))
LAUNCH = [f"launch/{name}/README" for name in ("swarm", "multinode", "slurm", "kubernetes")]
SECTIONS = {
    "Evaluating": [
        f"dist_eval/{name}/README"
        for name in ("data", "model", "metrics", "harness", "tuning", "api", "petals/model", "cli")
    ],
    "Results": [f"dist_eval/{name}/README" for name in ("runs", "report", "statistics", "analysis")],
    "Swarms and clusters": [
        "dist_eval/petals/README",
        "dist_eval/petals/server/README",
        "dist_eval/petals/client/README",
        "dist_eval/planning/README",
        "launch/README",
        *LAUNCH,
    ],
    "Options": [f"options/{command.replace(' ', '-')}" for command in PARSERS],
    "Reference": [f"reference/{module}" for module in MODULES],
    "More": ["benchmarks/README", ".github/SECURITY", "dist_eval/README", ".github/CONTRIBUTING", ".github/CHANGELOG"],
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
    shown: dict[str, str] = {}
    for command, parser in PARSERS.items():
        write_options(source / "options", command, parser, shown)
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


def write_options(folder: Path, command: str, parser: argparse.ArgumentParser, shown: dict[str, str]) -> None:
    """Writes a page about a command, and one about each group of its options.

    A group that another command has in the same words is only linked: `shown` has the page of each text.
    """
    name = command.replace(" ", "-")
    page = [f"# dist-eval {command}", "", str(parser.description), ""]
    groups, elsewhere = [], []
    for group in parser._action_groups:
        options = [one for one in group._group_actions if one.help != argparse.SUPPRESS and one.dest != "help"]
        lines = [line for option in options for line in (f"`{synopsis(option)}`", f": {option.help}", "")]
        if group in (parser._positionals, parser._optionals):
            page += lines
        elif options:
            title = str(group.title).capitalize()
            text = "\n".join([f"# {title}", "", group.description or "", "", *lines])
            target = f"options/{name}/{re.sub(r'[^a-z]+', '-', title.lower()).strip('-')}"
            if shown.setdefault(text, target) == target:
                groups.append(target)
                (folder / name).mkdir(parents=True, exist_ok=True)
                (folder.parent / f"{target}.md").write_text(text, encoding="utf-8")
            else:
                elsewhere.append(f"- [{title}](/{shown[text]}.md)")
    if elsewhere:
        page += ["", "As for other commands:", "", *elsewhere, ""]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text("\n".join(page) + (toctree(groups) if groups else ""), encoding="utf-8")


def synopsis(option: argparse.Action) -> str:
    """Returns an option as `--help` shows it, with its value."""
    value = option.metavar or ("{" + ",".join(map(str, option.choices)) + "}" if option.choices else "")
    names = [", ".join(option.option_strings)] if option.option_strings else []
    return " ".join([*names, *([str(value)] if value and option.nargs != 0 else [])])


if __name__ == "__main__":
    sys.exit(main())
