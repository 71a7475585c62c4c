"""The reference of the public API: it can be built, and says of every public name what holds; its examples run."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dist_eval

griffe, pdoc = pytest.importorskip("griffe"), pytest.importorskip("pdoc")

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / ".ci" / "reference.py"


def load_program() -> Any:
    spec = importlib.util.spec_from_file_location("reference", PROGRAM)
    assert spec and spec.loader
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


REFERENCE = load_program()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    done = subprocess.run([sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return {module: (folder / f"{module.replace('.', '/')}.html").read_text() for module in REFERENCE.MODULES}


def test_every_public_name_has_its_place(pages: dict[str, str]) -> None:
    for module, page in pages.items():
        names = importlib.import_module(module).__dict__.get("__all__") or ["SCHEMA_VERSION", "results_schema"]
        for name in names:
            assert f'<section id="{name}"' in page, f"{module}.{name}"
    for field in dist_eval.EvaluationConfig.__dataclass_fields__:
        assert f"<strong>{field}:</strong>" in pages["dist_eval"], field


def test_the_package_says_what_is_public() -> None:
    assert dist_eval.__doc__ and set(re.findall(r"`(dist_eval\.\w+)`", dist_eval.__doc__)) == {*REFERENCE.MODULES[1:]}


def test_sections_of_docstrings_are_rendered(pages: dict[str, str]) -> None:
    headings = set(re.findall(r'<h6 id="[\w-]+">(\w+):</h6>', pages["dist_eval"]))
    assert {"Arguments", "Attributes", "Examples", "Raises", "Returns"} <= headings
    for module, page in pages.items():
        assert "Args:" not in page, module
        assert not re.findall(r"<(?:p|code)>(?:Attributes|Examples|Raises|Returns|Yields):", page), module


def test_it_needs_nothing_from_elsewhere(pages: dict[str, str]) -> None:
    for page in pages.values():
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//", page)


def undocumented(modules: list[Any]) -> list[str]:
    """Names without a docstring, and attributes that their class does not describe."""
    found = []
    for module in modules:
        for name in module.members.values():
            parts = [one for one in getattr(name, "own_members", []) if not one.is_inherited]
            described = "\n".join(inspect.getdoc(base) or "" for base in getattr(name.obj, "__mro__", ()))
            for one in [name, *parts]:
                is_described = re.search(rf"^ +{one.name}: ", described, re.MULTILINE)
                if not one.name.startswith("_") and not one.docstring.strip() and not is_described:
                    found.append(one.fullname)
    return found


def test_every_public_name_is_documented() -> None:
    REFERENCE.prepare()
    assert undocumented([pdoc.doc.Module(importlib.import_module(name)) for name in REFERENCE.MODULES]) == []


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


def test_what_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_docstrings.py").write_text(BROKEN)
    assert any("numbr" in complaint for complaint in complaints("broken_docstrings", tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    module = pdoc.doc.Module(importlib.import_module("broken_docstrings"))
    assert undocumented([module]) == ["broken_docstrings.Known.second", "broken_docstrings.silent"]


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
