"""The documentation site: it can be built, links hold, and it says of every public name what holds; examples run."""

from __future__ import annotations

import argparse
import doctest
import importlib
import logging
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Launcher

import dist_eval
from dist_eval.arguments.commandline import build_parser
from dist_eval.cli.main import COMMANDS, parser_of
from dist_eval.petals.__main__ import COMMANDS as COMMANDS_OF_SWARM

griffe, _ = pytest.importorskip("griffe"), pytest.importorskip("sphinx")

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / ".docs" / "build.py"
MODULES = ("dist_eval", *re.findall(r"`(dist_eval\.\w+)`", dist_eval.__doc__ or ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = Launcher(tmp_path_factory.mktemp("own")).run(str(PROGRAM), str(folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_every_public_name_has_its_place(site: Path) -> None:
    for name in MODULES:
        page, module = (site / "reference" / f"{name}.html").read_text(), importlib.import_module(name)
        for public in module.__dict__.get("__all__") or ["SCHEMA_VERSION", "results_schema"]:
            assert f'id="{name}.{public}"' in page, f"{name}.{public}"


def shown_options(command: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the parser of a command, and those of its own commands, with the names of their pages."""
    yield command, parser_of(COMMANDS[command])
    if command == "swarm":
        yield from ((f"swarm-{name}", build_parser(command)) for name, (command, _) in COMMANDS_OF_SWARM.items())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_on_the_page_of_its_command_or_of_its_group(command: str, site: Path) -> None:
    for name, parser in shown_options(command):
        page = site / "options" / f"{name}.html"
        own = page.read_text().partition("<article")[2].partition("</article")[0]
        linked = {page.parent / link for link in re.findall(r'href="([\w/-]+\.html)', own)}
        text = own + "".join(file.read_text() for file in linked)
        for option in parser._actions:
            assert option.help, option
            if option.option_strings and option.help != argparse.SUPPRESS and option.dest != "help":
                assert re.search(rf'<dt>[^\n]*<span class="pre">{option.option_strings[0]},?</span>', text), option


def test_it_has_every_readme(site: Path) -> None:
    for file in subprocess.run(
        ["git", "ls-files", "*README.md"], capture_output=True, text=True, cwd=ROOT
    ).stdout.split():
        assert (site / file).with_suffix(".html").exists(), file
    assert (site / "index.html").exists()


def test_sections_of_docstrings_are_rendered(site: Path) -> None:
    for name in MODULES:
        page = (site / "reference" / f"{name}.html").read_text()
        assert not re.findall(r">(?:Args|Attributes|Examples|Raises|Returns|Yields):\s", page), name


def test_it_needs_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//", page.read_text()), (
            page
        )


def undocumented(package: Any, modules: Sequence[str]) -> list[str]:
    """Names without a docstring, and attributes that their class does not describe."""
    found = []
    for module in (package[name.partition(".")[2]] if "." in name else package for name in modules):
        for name, member in module.members.items():
            if name.startswith("_") or not (member.is_exported or (module.exports is None and not member.is_alias)):
                continue
            part = member.final_target if member.is_alias else member
            parts = [part, *(part.members.values() if part.is_class else ())]
            classes = [part, *part.mro()] if part.is_class else []
            described = "\n".join(one.docstring.value for one in classes if one.docstring)
            found += [
                one.canonical_path
                for one in parts
                if not (one.name.startswith("_") or one.is_alias or one.has_docstring or _is_option(one))
                and not re.search(rf"^ +{one.name}: ", described, re.MULTILINE)
            ]
    return found


def _is_option(member: Any) -> bool:
    """Whether a member is an option of the command line, which has its help."""
    return member.is_attribute and str(member.value).startswith("option(")


def test_every_public_name_is_documented() -> None:
    assert undocumented(griffe.load("dist_eval", search_paths=[ROOT]), MODULES) == []


def complaints(name: str, folder: Path) -> list[str]:
    """What griffe finds wrong in docstrings: parameters that do not exist, sections that cannot be parsed, ..."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    listener, logger = Listener(logging.WARNING), logging.getLogger("griffe")
    logger.addHandler(listener)
    level, disabled, all_below = logger.level, logger.disabled, logger.manager.disable
    logger.setLevel(logging.WARNING)  # libraries that other tests have loaded may have turned it down
    logger.disabled, logger.manager.disable = False, 0
    try:
        parts: list[Any] = [griffe.load(name, search_paths=[folder], docstring_parser="google")]
        while parts:
            part = parts.pop()
            if not part.is_alias:
                _ = part.docstring and part.docstring.parsed
                parts += part.members.values()
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
        logger.disabled, logger.manager.disable = disabled, all_below
    return found


def test_docstrings_hold_in_the_whole_package() -> None:
    assert complaints("dist_eval", ROOT) == []


BROKEN = '''
from dataclasses import dataclass

@dataclass
class Known:
    """Something.

    Attributes:
        first: described.
    """

    first: int
    second: int

def half(number: int) -> float:
    """Halves.

    Args:
        numbr: what is halved.
    """
    return number / 2

def silent() -> None:
    pass
'''


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    (tmp_path / "broken_docstrings.py").write_text(BROKEN)
    assert any("numbr" in complaint for complaint in complaints("broken_docstrings", tmp_path))
    module = griffe.load("broken_docstrings", search_paths=[tmp_path])
    assert undocumented(module, ["broken_docstrings"]) == ["broken_docstrings.Known.second", "broken_docstrings.silent"]


def examples() -> dict[str, doctest.DocTest]:
    finder, found = doctest.DocTestFinder(exclude_empty=True), {}
    for file in sorted((ROOT / "dist_eval").rglob("*.py")):
        if ">>> " in file.read_text(encoding="utf-8"):
            module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
            found.update({test.name: test for test in finder.find(module) if test.examples})
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = doctest.DocTestRunner().run(EXAMPLES[name])
    assert result.failed == 0, capsys.readouterr().out


def test_what_people_build_on_first_has_examples() -> None:
    ends = {name.rsplit(".", 1)[1] for name in EXAMPLES}
    assert {"evaluate", "compute_metrics", "prove_coverage", "metric_intervals", "paired_differences"} <= ends
