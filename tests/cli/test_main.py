"""The command `dist-eval`: its list of commands, their help, and the message for an unknown command."""

from __future__ import annotations

import functools
import importlib
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dist_eval.arguments.commandline import parse_args
from dist_eval.cli import main as cli
from dist_eval.cli.main import COMMANDS, command_of, parser_of


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dist-eval", *words])
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as the installed command has it
    return cli.main()


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command_on_a_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, program in COMMANDS.items():
        assert sum(line.split() == [name, *program.help.split()] for line in lines) == 1
    assert max(map(len, lines)) <= 100


def test_a_wrong_command_suggests_a_close_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "compair") == 2
    assert capsys.readouterr().err == "Unknown command 'compair'. Did you mean compare?\n"
    assert called(monkeypatch, "frobnicate") == 2
    assert "dist-eval --help lists all commands" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")  # of runpy
def test_modules_in_the_working_directory_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics_of_here.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        called(monkeypatch, "compare", "--help")
    importlib.import_module("own_metrics_of_here")


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.split() == ["dist-eval", metadata.version("dist_eval")]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")  # of runpy
@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_command(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        called(monkeypatch, name, "--help")
    assert capsys.readouterr().out.startswith(f"usage: dist-eval {name}")


def test_no_help_imports_a_large_library() -> None:
    code = "import sys; from dist_eval.cli.main import COMMANDS, parser_of"
    code += "; print([parser_of(program).format_help() and None for program in COMMANDS.values()], *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    large = {"torch", "numpy", "scipy", "sklearn", "transformers", "datasets", "pyarrow", "matplotlib", "jinja2"}
    assert large.isdisjoint(done.stdout.split())


def examples_of(name: str) -> list[list[str]]:
    """Returns the words of each example in a command's help, as a shell reads them."""
    _, _, text = parser_of(COMMANDS[name]).format_help().partition("\nexamples:\n")
    commands = text.partition("\n\n")[0].replace("\\\n", "").splitlines()
    identity = "Qm" + "a" * 44  # for the placeholder
    return [shlex.split(line.partition(">>")[0].replace("QmPeerIdentity", identity)) for line in commands]


def test_every_example_in_a_help_is_one_that_its_parser_takes() -> None:
    examples = {name: examples_of(name) for name in COMMANDS}
    assert {"run", "tune", "harness", "plan", "doctor", "report"} <= {name for name, ones in examples.items() if ones}
    for name, ones in examples.items():
        for program, command, *words in ones:
            assert (program, command) == ("dist-eval", name)
            parse_args(words, command_of(COMMANDS[name]), parser_of(COMMANDS[name]))
    assert [words[words.index("--stop") + 1] for words in examples["run"] if "--stop" in words] == ["\\n"]


@functools.cache
def completion(shell: str) -> str:
    command = [sys.executable, "-m", "dist_eval.cli.completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_options(shell: str) -> None:
    script = completion(shell)
    assert all(name in script for name in COMMANDS)
    assert "--initial-peers" in script and "--nproc-per-node" in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [("comp", {"compare", "completion"}), ("run --nproc", {"--nproc-per-node"}), ("report --mark", {"--markdown"})],
)
def test_bash_completes_commands_and_options(words: str, expected: set[str]) -> None:
    ask = f"COMP_WORDS=(dist-eval {words}); COMP_CWORD={len(words.split())}; _shtab_dist_eval; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", f"{completion('bash')}\n{ask}"], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == expected
