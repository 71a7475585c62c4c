"""`dist-eval plan`: what it says of a run, with a probe of a real swarm and without one; it writes no file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Launcher, run_here

from dist_eval import demo
from dist_eval.arguments.commandline import build_parser, parse_args
from dist_eval.errors import ConfigError
from dist_eval.petals.server.private import PrivateSwarm
from dist_eval.planning.config import PLAN
from dist_eval.planning.record import PlannedRun
from dist_eval.planning.table import format_bytes

OPTIONS = [word for name, value in demo.OPTIONS.items() for word in (f"--{name}", value)]


def plan_here(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    status = run_here("-m", "dist_eval.planning", *options)
    return status, *capsys.readouterr()


def test_ranks_probe_a_swarm_together_and_leave_nothing(
    launcher: Launcher, demo_swarm: PrivateSwarm, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    command = ["plan", "--nproc-per-node=2", *OPTIONS, "--json", "--output", str(output)]
    done = launcher.run("-m", "dist_eval.cli.main", *command, "--initial-peers", *demo_swarm.initial_peers)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "probing for at most 60 s ...\n"
    planned = PlannedRun.model_validate_json(done.stdout)
    assert (planned.ranks, planned.data.examples, planned.cut.texts) == (2, 596, 0)
    assert {one.label: one.examples for one in planned.labels}["3"] == 61
    assert planned.network is not None
    numbers = {name: count // 96 for name, count in planned.network.model_dump().items() if name != "ids"}
    tokens, batches = planned.plan.padded_tokens, planned.plan.batches
    assert planned.network.ids == tokens - 596 * 16
    assert numbers == {"prompts": batches * 16, "deep_prompts": 2 * 4 * 16, "outputs": 596, "activations": tokens}
    assert planned.time is not None
    assert planned.time.probe_batches >= 20, "24 are wanted, and one rank's last may come when the other has ended"
    assert 0 < planned.time.first_answer < planned.time.seconds
    assert planned.time.low is not None and planned.time.low <= planned.time.seconds
    assert not output.exists()
    assert not launcher.leftovers()


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options for a small file of several kinds of texts, in the current folder."""
    monkeypatch.chdir(tmp_path)
    lines = ["text,label", *(f"{'1234567890' * 4},{number}" for number in (3, 3, 7)), ",0", '"1\n2",0']
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    return ["--checkpoint", str(demo.CHECKPOINT), "--model", str(demo.BASE_MODEL), "--dataset", "rows.csv"]


def test_without_a_probe_no_swarm_is_named_and_nothing_is_sent(
    rows: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, complaints = plan_here(capsys, *rows, "--max-length", "30", "--no-probe")
    assert (status, complaints) == (0, "")
    assert [path.name for path in Path().iterdir()] == ["rows.csv"]
    for words in (
        "data: 5 examples of rows.csv",
        "cut: 3 texts to 30 tokens, which loses 33 tokens (25.8%)",
        "the median loss of these texts is 11, the longest loses 11 of 41",
        "unusual: 1 text with several lines, 1 text without a token of its own",
        "without any example: 1, 2, 4, 5, 6, 8, 9",
        " from each server to the next; up to twice that if servers compute in float32",
        "time: unknown without a probe",
    ):
        assert words in said
    assert re.search(r"^3 +2  0\.4000$", said, re.MULTILINE)


def test_a_model_in_this_process_is_probed_without_any_traffic(
    rows: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, _ = plan_here(capsys, *rows, "--backend", "local", "--json")
    planned = json.loads(said)
    assert status == 0
    assert planned["network"] is None
    assert planned["time"]["seconds"] > 0


def test_generated_texts_are_probed_as_the_run_would_generate_them(
    rows: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [*rows[2:], "--prompt", "{text}", "--generate", "--max-new-tokens", "4", "--max-length", "38"]
    status, said, _ = plan_here(capsys, *prompts, "--no-probe", "--limit", "3")
    assert status == 0
    for words in (
        "data: 3 examples of rows.csv (the first 3 of",
        "prompts: 33 to 33 tokens, median 33; after each a text of at most 4 tokens",
        "cut: 3 prompts from the left, the longest of 41 tokens",
        "tokens: at most 108 to send",
        "time: unknown without a probe",
    ):
        assert words in said
    status, said, _ = plan_here(capsys, *prompts, "--backend", "local", "--limit", "3", "--json")
    planned = PlannedRun.model_validate_json(said)
    assert (status, planned.examples, planned.labels, planned.network) == (0, 3, [], None)
    assert planned.time is not None and planned.time.seconds > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([*OPTIONS], "You did not name a swarm."),
        ([*OPTIONS, "--no-probe", "--swarm", "embedded", "--backend", "local"], "--backend local uses no swarm"),
        (["--no-probe", "--checkpoint", "c"], "--dataset is missing"),
        ([*OPTIONS, "--backend", "local", "--probe-seconds", "0"], "--probe-seconds must be more than 0"),
        ([], "A plan takes the options of the run"),
    ],
)
def test_wrong_options_are_one_clear_message(options: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_args(options, PLAN)


def test_help_shows_how_to_leave_the_probe_out() -> None:
    shown = build_parser(PLAN).format_help()
    assert "--no-probe" in shown
    assert not re.search(r"^ +--probe ", shown, re.MULTILINE)


def test_a_run_that_would_fail_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    status, said, complaints = plan_here(capsys, *OPTIONS, "--no-probe", "--text-column", "sentence")
    assert (status, said) == (1, "")
    assert "has no column 'sentence'" in complaints
    assert complaints.count("\n") == 1


@pytest.mark.parametrize(("count", "words"), [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (5.678e15, "5.68 PB")])
def test_bytes_have_three_digits(count: float, words: str) -> None:
    assert format_bytes(count) == words
