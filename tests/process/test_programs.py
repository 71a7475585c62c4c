"""What is printed fails no program, whatever the terminal, pipe or disk behind it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dist_eval

PROGRAM = """
import sys
from dist_eval.process.programs import run_program

def main():
    with open(sys.argv[1], "w") as file:
        print(file.fileno(), file=file)
        for _ in range(3):
            print("零 ± → \\udcff" * 5000, flush=True)
            print("零", file=sys.stderr)
        sys.stdout.write("buffered")
        print("done", file=file)
    return int(sys.argv[2])

run_program(main)
"""

CANNOT = "dist_eval: standard output cannot be written: No space left on device.\n"


def shell(tmp_path: Path, redirection: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = f'"$0" "$1" "$2" {status} {redirection}'
    arguments = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "file")]
    environment = {**os.environ, **environment}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command, *arguments], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "ascii:strict"])
def test_what_a_terminal_cannot_show_is_escaped(tmp_path: Path, encoding: str, unbuffered: str) -> None:
    found = shell(tmp_path, "", PYTHONIOENCODING=encoding, PYTHONUNBUFFERED=unbuffered)
    assert found.returncode == 0
    shown = "零 ± → \\udcff" if encoding == "utf-8" else "\\u96f6 \\xb1 \\u2192 \\udcff"
    assert found.stdout == f"{shown * 5000}\n" * 3 + "buffered"
    assert found.stderr.count("零" if encoding == "utf-8" else "\\u96f6") == 3


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_does_not_block_is_given_everything(tmp_path: Path, unbuffered: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "file"), "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, env=environment, stdout=writer, stderr=subprocess.DEVNULL) as process:
        os.close(writer)
        with open(reader, encoding="utf-8") as shown:
            assert shown.read() == ("零 ± → \\udcff" * 5000 + "\n") * 3 + "buffered"
    assert process.returncode == 0


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "redirection",
    [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", "| true", "2>&1 | true", ">/dev/full 2>&-", ">/dev/full"],
)
def test_output_that_is_lost_changes_nothing_else(
    tmp_path: Path, redirection: str, unbuffered: str, status: int
) -> None:
    found = shell(tmp_path, redirection, status, PYTHONIOENCODING="utf-8", PYTHONUNBUFFERED=unbuffered)
    descriptor, done = (tmp_path / "file").read_text().split()
    assert int(descriptor) > 2, "no file of the program is written to by what prints"
    assert done == "done"
    is_product_lost = redirection.startswith(">/dev/full")
    assert found.returncode == (status or int(is_product_lost))
    assert "Error" not in found.stderr
    assert found.stderr.endswith(CANNOT) is (redirection == ">/dev/full")


def test_a_program_prints_the_schema_or_says_that_it_cannot() -> None:
    def schema(redirection: str) -> subprocess.CompletedProcess[str]:
        command = f'"$0" -m dist_eval.cli.main schema {redirection}'
        return subprocess.run(["bash", "-o", "pipefail", "-c", command, sys.executable], capture_output=True, text=True)

    assert json.loads(schema("").stdout)["$defs"]
    assert (schema("| head -1").returncode, schema("| head -1").stderr) == (0, "")
    assert (schema(">/dev/full").returncode, schema(">/dev/full").stderr) == (1, CANNOT)


def test_every_program_prints_through_it() -> None:
    package = Path(dist_eval.__file__).parent
    programs = {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8").split('if __name__ == "__main__":')[1]
        for path in package.rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    assert len(programs) > 10
    print_nothing = {"process/janitor.py", "petals/server/server.py"}  # their output goes nowhere, or to a log
    by_other_means = {"doctor/__main__.py", "cli/main.py"}  # in their main functions
    for name in sorted(programs.keys() - print_nothing - by_other_means):
        assert any(how in programs[name] for how in ("run_program(", "program.main(", "tolerate_")), name
    for name in by_other_means:
        assert "    tolerate_broken_output()\n" in (package / name).read_text(encoding="utf-8")
