"""The programs, small: they end well, compare the same answers of all contenders, and leave nothing behind."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, Launcher, wait_for
from namespaces import why_not

from benchmarks import (
    blocks,
    combine,
    generation,
    network,
    pipeline,
    prefix,
    recipes,
    scale,
    startup,
    tasks,
    throughput,
    tuning,
)

HARNESS = importlib.util.find_spec("lm_eval") is not None

# the reports of each program, by the names of alternatives that each has at least
PROGRAMS: dict[str, dict[str, set[str]]] = {
    "blocks": {
        "blocks": {f"{way}: resident at most" for way in (blocks.QUARTER, blocks.WHOLE)},
        "blocks-families": {blocks.ESTIMATED, blocks.TAKEN},
    },
    "combine": {"combine": {f"{way}: gather" for way in combine.WAYS}, "combine-memory": set()},
    "estimates": {"estimates": set()},
    "eval_batch": {"eval_batch": {"dist_eval, 2 servers", "dist_eval, one at a time"}},
    "generation": {"generation": {generation.LOCAL, "dist_eval, 1 rank", "Petals' generate, 6 threads"}},
    "intervals": {
        "intervals": {"f1_macro: BCa (dist_eval)", "f1_macro: percentile", "accuracy: Wald"},
        "intervals-groups": {"mcc: BCa, by groups (dist_eval)", "mcc: BCa, by examples"},
        "intervals-samples": {"mcc: BCa, corrected (dist_eval)", "mcc: BCa"},
        "intervals-speed": {"f1_macro: dist_eval", "f1_macro: scipy"},
        "intervals-power": {"McNemar's test (dist_eval)", "McNemar's test: theory"},
    },
    "network": {"network": {network.TCP, "hop by hop, 2 in flight", "chain, 2 in flight"}},
    "pipeline": {"pipeline": {"dist_eval, 1 rank", pipeline.PETALS}},
    "prefix": {"prefix": {prefix.SESSIONS, prefix.PLAIN}},
    "recipes": {"recipes": {*recipes.RECIPES}},
    "scale": {"scale": {*scale.STEPS}, "scale-memory": {f"{scale.MANY}: rank 1", f"{scale.ONE}: rank 1"}},
    "startup": {"startup": {startup.HELP, startup.NOTHING, startup.TORCHRUN, "dist_eval, 1 rank"}},
    "soak": {"soak": {"dist_eval, tenth 1", "dist_eval, tenth 10"}},
    "streams": {"streams": {"dist_eval", "hivemind"}},
    "swarm": {"swarm": {"1 under way", "window free"}},
    "tasks": {"tasks": {tasks.LOCAL, "dist_eval, 1 rank"}},
    "throughput": {
        "throughput": {
            *(throughput.LOCAL, throughput.LOOP_64, "dist_eval, 1 rank", "dist_eval, 2 ranks"),
            *("gather_for_metrics, 2 ranks, batch 32", "Trainer.predict, batch 32"),
        }
    },
    "tuning": {"tuning": {tuning.MAJORITY, tuning.BAG_OF_WORDS, tuning.WORDS, *map(tuning.tuned, tuning.MODES)}},
    "vocabulary": {"vocabulary": set(), "vocabulary-memory": set()},
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compares_the_same_answers_of_all_contenders(name: str, launcher: Launcher, tmp_path: Path) -> None:
    if name in ("generation", "tasks") and not HARNESS:
        pytest.skip("the extra `harness` is not installed")
    if name == "network" and (reason := why_not()):
        pytest.skip(reason)
    done = launcher.run("-m", f"benchmarks.{name}", "--quick", "--output", str(tmp_path), preloaded=False)
    assert done.returncode == 0, done.stderr
    for report, alternatives in PROGRAMS[name].items():
        content = json.loads((tmp_path / f"{report}.json").read_text())
        assert content["question"] in done.stdout
        assert {series["name"] for series in content["series"]} >= alternatives
        for series in content["series"]:
            assert len(series["values"]) == 1 and series["name"] in done.stdout
            # recipes reports differences; the memory of a small vocabulary may be less than a page
            assert series["values"][0] > 0 or name in ("recipes", "vocabulary")
            details = series["details"][0]
            if isinstance(details, dict):
                assert details.get("equal", 1) == 1, series
        assert (tmp_path / f"{report}.png").read_bytes().startswith(b"\x89PNG")
    if name in CHECKS:
        CHECKS[name](json.loads((tmp_path / f"{name}.json").read_text()))
    assert not launcher.leftovers()


def check_pipeline(content: Any) -> None:
    assert all(0.1 < series["values"][0] < 1.01 for series in content["series"]), "nothing is faster than the servers"
    assert not content["notes"], "the plan has as many batches as the limit counts"


def check_recipes(content: Any) -> None:
    for series in content["series"]:
        if series["name"] == recipes.OURS:
            assert series["median"] <= recipes.ROUNDING
        elif "3 ranks" in series["group"] and ("cut" in series["name"] or "padding" in series["name"]):
            assert series["median"] > 0.01


def check_throughput(content: Any) -> None:
    for series in content["series"]:
        far = series["group"].endswith(" 100 ms") and series["name"] != throughput.LOCAL
        assert not far or series["details"][0]["seconds"] > 0.2, "two servers, one after the other, at 100 ms each"


CHECKS = {"pipeline": check_pipeline, "recipes": check_recipes, "throughput": check_throughput}


def test_interrupted_a_program_leaves_nothing_behind(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.start("-m", "benchmarks.combine", "--quick", "--output", str(tmp_path))
    assert wait_for(lambda: any("benchmarks.combine:combine" in line for line in launcher.processes().values()))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert not launcher.leftovers()


def test_a_swarm_that_does_not_answer_is_one_clear_message(launcher: Launcher, tmp_path: Path) -> None:
    peer = "/ip4/127.0.0.1/tcp/9/p2p/QmXrBc2Pm66y8HsrBPtxEp6jaBQaRzN15V8UcNophNNmik"
    arguments = ["--initial-peers", peer, "--swarm-timeout", "2", "--output", str(tmp_path)]
    done = launcher.run("-m", "benchmarks.swarm", *arguments, preloaded=False)
    assert done.returncode == 1
    assert "None of the swarm's peers answered within 2 s" in done.stderr
    assert "Traceback" not in done.stderr
    assert not launcher.leftovers()
