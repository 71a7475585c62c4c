"""Runs on prompts after which texts are generated: on several ranks, through a swarm, killed, and compared."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    TIMEOUT,
    ForkedSwarm,
    Launcher,
    assert_tracked,
    results_of,
    run_here,
    wait_for,
    wait_until_under_way,
    with_options,
)
from harness_tasks import WORDS, make_tokenizer
from pyarrow import parquet
from tiny_models import LAYERS, VOCABULARY, edited_tensors, save_tiny_models

from dist_eval.compare.__main__ import main as compare
from dist_eval.compare.comparison import compare as compare_runs
from dist_eval.compare.loading import load_run
from dist_eval.errors import RunError
from dist_eval.report.__main__ import main as report
from dist_eval.summary.document import on_same_data

ROWS, NEW_TOKENS = 40, 10
LOCAL = ("--backend", "local")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer."""
    folder = tmp_path_factory.mktemp("generating")
    return save_tiny_models(folder, "llama", tokenizer=make_tokenizer(VOCABULARY))["llama"]


def questions() -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(ROWS)]


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    """What transformers generates, one prompt at a time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, found = AutoTokenizer.from_pretrained(model), []
    theirs = AutoModelForCausalLM.from_pretrained(model)
    for question in questions():
        ids = tokenizer(f"Question: {question}\nAnswer:", return_tensors="pt")["input_ids"]
        mask = torch.ones_like(ids)
        whole = theirs.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        found.append(tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True).split("w")[0])
    return found


@pytest.fixture(scope="module")
def dataset(expected: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every second row has the right text among its references, every fourth only when normalized."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = []
    for number, (question, text) in enumerate(zip(questions(), expected, strict=True)):
        right = f"The {text.strip().upper()}!" if number % 4 == 0 and text.strip() else text
        rows.append({"question": question, "answers": ["nothing", right] if number % 2 == 0 else ["nothing"]})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def command(model: Path, dataset: Path, output: Path, *further: str) -> list[str]:
    own = [
        *("-m", "dist_eval", "--model", str(model), "--dataset", str(dataset), "--label-column", "answers"),
        *("--prompt", "Question: {question}\\nAnswer:", "--generate", "--stop", "w"),
        *("--max-new-tokens", str(NEW_TOKENS), "--report", "none", "--output", str(output)),
    ]
    return with_options(own, further)


def predictions(output: Path) -> list[dict[str, Any]]:
    return parquet.read_table(output / "predictions.parquet").to_pylist()


def test_texts_are_those_of_transformers_and_compared_with_references(
    model: Path, dataset: Path, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run_here(*command(model, dataset, output, *LOCAL, "--tracker", "tensorboard")) == 0
    out, err = capfd.readouterr()
    assert_tracked(output, "rows/exact_match")
    assert "rows/exact_match      0.5000 [0.3520, 0.6480]" in out and "Warning" not in err
    rows, results = predictions(output), results_of(output)
    assert [row["text"] for row in rows] == expected and [row["index"] for row in rows] == list(range(ROWS))
    assert [row["exact_match"] for row in rows] == [number % 2 == 0 for number in range(ROWS)]
    raw = [number % 4 == 2 or (number % 4 == 0 and not text.strip()) for number, text in enumerate(expected)]
    assert [row["exact_match_raw"] for row in rows] == raw
    [task] = results["tasks"].values()
    assert {one["metric"]: one["value"] for one in task["metrics"]} == {
        "exact_match": 0.5,
        "exact_match_raw": sum(raw) / ROWS,
    }
    assert results["prompts"]["texts"] == ROWS == results["coverage"]["seen"]
    before = (output / "results.json").read_bytes()
    assert run_here(*command(model, dataset, output, *LOCAL)) == 0, "complete: shown again, nothing is sent"
    assert (output / "results.json").read_bytes() == before
    assert report([str(output), "--texts"]) == 0
    page = (output / "report.html").read_text(encoding="utf-8")
    missed = next(text for text in expected[1::2] if text.strip())
    assert missed.split()[0] in page and "greedy, at most 10 tokens, up to &#39;w&#39;" in page
    capfd.readouterr()
    assert run_here(*command(model, dataset, output, *LOCAL, "--stop", "win")) == 1
    assert "it differs in the decoding" in capfd.readouterr().err


def test_texts_that_would_end_elsewhere_are_of_another_run(
    model: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "model"
    shutil.copytree(model, own)
    again = command(own, dataset, tmp_path / "run", *LOCAL)
    assert run_here(*again) == 0
    (own / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 23]}))
    assert run_here(*again) != 0
    assert "it differs in the end tokens" in capfd.readouterr().err


def test_a_prompt_that_begins_with_the_tokenizers_own_first_token_has_it_once(
    model: Path, dataset: Path, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prompt = ("--prompt", "<s>Question: {question}\\nAnswer:")
    assert run_here(*command(model, dataset, tmp_path, *prompt, *LOCAL)) == 0
    assert [row["text"] for row in predictions(tmp_path)] == expected
    said = f"{ROWS} prompts have the tokenizer's BOS in front already, which is not added again"
    empty = f"{sum(not text.strip() for text in expected)} texts are empty, which counts as a wrong answer unless a "
    assert results_of(tmp_path)["notices"] == [said, f"{empty}reference is also empty"]
    assert f"\nnotice: {said}\n" in capfd.readouterr().out


def test_samples_depend_on_the_seed_and_runs_are_compared_by_row(
    model: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drawn = ("--temperature", "0.8", "--top-k", "20", *LOCAL)
    copy = tmp_path / "copy.jsonl"  # the same rows under another name
    copy.write_bytes(dataset.read_bytes())
    for name, seed, rows in (("a", "1", dataset), ("b", "2", copy)):
        assert run_here(*command(model, rows, tmp_path / name, *drawn, "--seed", seed)) == 0
    assert [row["text"] for row in predictions(tmp_path / "a")] != [row["text"] for row in predictions(tmp_path / "b")]
    some = command(model, dataset, tmp_path / "some", *drawn, "--seed", "1", "--sample", "5")
    assert run_here(*some) == 0
    greedy = command(model, dataset, tmp_path / "greedy", *LOCAL, "--seed", "1", "--top-k", "20")
    assert run_here(*greedy) == 0
    assert results_of(tmp_path / "greedy")["notices"][-1] == (
        "--top-k and --seed: without effect, because --temperature is 0"
    )
    whole = {row["index"]: row["text"] for row in predictions(tmp_path / "a")}
    found = {row["index"]: row["text"] for row in predictions(tmp_path / "some")}
    assert len(found) == 5 and found.items() <= whole.items(), "the same draws in a sample of the rows"
    capfd.readouterr()
    runs = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert compare(runs) == 0
    assert f"{ROWS}" in capfd.readouterr().out
    assert compare([*runs, "--metric", "rows/exact_match"]) == 0, "the name that it prints"
    capfd.readouterr()
    own = ("exact_match", "f1", "long=sample_metrics:contains")
    assert compare([*runs, "--json", "--metric", *own]) == 0
    found = json.loads(capfd.readouterr().out)
    for name, seed, rows in (("a", "1", dataset), ("b", "2", copy)):
        again = command(model, rows, tmp_path / name, *drawn, "--seed", seed, "--metric", *own[1:])
        assert run_here(*again) == 0
    capfd.readouterr()
    assert compare([*runs, "--json", "--metric", "exact_match", "f1", "long"]) == 0
    assert json.loads(capfd.readouterr().out)["runs"][0]["differences"] == found["runs"][0]["differences"]
    assert compare([*runs, "--metric", "failing=sample_metrics:share_of_short_ones"]) == 1
    assert "--metric failing has no value for" in capfd.readouterr().err
    assert compare([*runs, "--metric", "accuracy"]) == 2
    assert "is not a metric of generated texts" in capfd.readouterr().err


def scores(output: Path) -> list[Any]:
    """What `results.json` says of texts."""
    results = results_of(output)
    return [results[name] for name in ("tasks", "slices", "dataset", "notices")]


def test_a_complete_run_computes_new_metrics_slices_and_answers_from_its_texts(
    model: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in dataset.read_text().splitlines()]
    rows = [{**row, "story": number // 2 % 20, "kind": "ab"[number % 2]} for number, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    metrics = ("--metric", "f1", "sample_metrics:contains", "failing=sample_metrics:share_of_short_ones")
    asked = ("--group-column", "story", "--slice-by", "kind", "length", "--answer-pattern", "[aeo]\\w+")

    def run(output: str, *options: str) -> None:
        assert run_here(*command(model, tmp_path / "rows.jsonl", tmp_path / output, *LOCAL, *options)) == 0

    run("fresh", *metrics, *asked)
    run("again")
    usual = (tmp_path / "again" / "predictions.parquet").read_bytes()
    journal = [path.read_bytes() for path in (tmp_path / "again" / "journal").glob("*.batches")]
    run("again", *metrics)
    capfd.readouterr()
    run("again", *asked)
    assert "Nothing was sent; --overwrite runs it again.\nComputed from its answers:" in capfd.readouterr().out
    for name in ("predictions.parquet", "results.json"):
        content = (tmp_path / "again" / name).read_bytes()
        assert name == "results.json" or content == (tmp_path / "fresh" / name).read_bytes()
    assert scores(tmp_path / "again") == scores(tmp_path / "fresh")
    assert journal == [path.read_bytes() for path in (tmp_path / "again" / "journal").glob("*.batches")]

    found = predictions(tmp_path / "again")
    unmatched = [row for row in found if row["answer"] is None]
    results = results_of(tmp_path / "again")
    [task] = results["tasks"].values()
    by_name = {metric["metric"]: metric for metric in task["metrics"]}
    assert 0 < len(unmatched) == results["dataset"]["unmatched"] < ROWS
    assert f"{len(unmatched)} texts have no match of --answer-pattern, which counts as a wrong" in results["notices"][0]
    assert not any(row["f1"] or row["exact_match"] for row in unmatched)
    assert by_name["f1"]["value"] == pytest.approx(sum(row["f1"] for row in found) / ROWS)
    assert by_name["exact_match"]["interval"]["method"] != "wilson", "rows of a group are drawn together"
    assert results["dataset"]["groups"] == {"column": "story", "count": 20, "largest": 2}
    assert by_name["failing"]["value"] is None and "ZeroDivisionError" in by_name["failing"]["interval"]["reason"]
    kinds = [part for part in results["slices"] if part["by"] == "kind"]
    assert [part["n"] for part in kinds] == [ROWS // 2] * 2
    assert sum(part["metrics"]["f1"] for part in kinds) / 2 == pytest.approx(by_name["f1"]["value"])
    assert report([str(tmp_path / "again"), "--texts"]) == 0
    page = (tmp_path / "again" / "report.html").read_text(encoding="utf-8")
    assert "By kind" in page and "no match of --answer-pattern" in page and "answer &#39;" in page

    with pytest.raises(RunError, match="their --group-column differs"):
        run("plain")
        compare_runs([load_run(tmp_path / name) for name in ("plain", "again")])
    [compared] = compare_runs([load_run(tmp_path / name) for name in ("fresh", "again")])
    assert compared.differences["rows/exact_match"].value == 0 and not compared.tests
    assert (tmp_path / "plain" / "predictions.parquet").read_bytes() == usual

    run("again", "--confidence", "0.9")  # all else stays, the order of the metrics, too
    assert (tmp_path / "again" / "predictions.parquet").read_bytes() == (
        tmp_path / "fresh" / "predictions.parquet"
    ).read_bytes()
    [task] = results_of(tmp_path / "again")["tasks"].values()
    assert [metric["metric"] for metric in task["metrics"]] == list(by_name)
    run("again", "--answer-pattern", "")
    run("again")
    assert results_of(tmp_path / "again")["dataset"]["unmatched"] is None
    wholes = [
        {name: row[name] for name in ("index", "references", "text", "exact_match")}
        for row in predictions(tmp_path / "plain")
    ]
    found = predictions(tmp_path / "again")
    assert [{name: row[name] for name in wholes[0]} for row in found] == wholes and "answer" not in found[0]


def test_a_part_of_the_rows_has_the_texts_that_they_have_among_all(
    model: Path, dataset: Path, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, options in (("first", ("--limit", "30")), ("drawn", ("--sample", "30", "--sample-seed", "1"))):
        assert run_here(*command(model, dataset, tmp_path / name, *LOCAL, *options)) == 0
        assert all(row["text"] == expected[row["index"]] for row in predictions(tmp_path / name))
    assert [row["index"] for row in predictions(tmp_path / "first")] == list(range(30))
    assert "evaluating 30 of 40 rows, sampled with seed 1" in capfd.readouterr().out
    limits = []
    for name in ("first", "drawn"):
        [task] = results_of(tmp_path / name)["tasks"].values()
        interval = task["metrics"][0]["interval"]
        limits.append(interval["high"] - interval["low"])
    assert limits[1] < 0.7 * limits[0], "most of the rows were drawn"
    assert run_here(*command(model, dataset, tmp_path / "drawn", *LOCAL, "--sample", "29")) == 1
    assert "it differs in the selection of rows" in capfd.readouterr().err
    [compared] = compare_runs([load_run(tmp_path / name) for name in ("first", "drawn")])
    paired, unpaired = compared.samples["rows/exact_match"]
    assert 2 * paired + unpaired == 60 and paired >= 20


def test_runs_on_other_rows_are_not_compared(model: Path, dataset: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in dataset.read_text().splitlines()[:6]]
    texts = [{**row, "question": rows[0]["question"]} for row in rows]
    references = [{**row, "answers": row["answers"] if place else ["else"]} for place, row in enumerate(rows)]
    runs = {}
    for name, written in (("rows", rows), ("texts", texts), ("references", references)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, written)))
        assert run_here(*command(model, tmp_path / f"{name}.jsonl", tmp_path / name, *LOCAL)) == 0
        runs[name] = load_run(tmp_path / name)
    with pytest.raises(RunError, match=r"their data differ, .*rows\.jsonl and .*texts\.jsonl"):
        compare_runs([runs["rows"], runs["texts"]])
    with pytest.raises(RunError, match=r"1 row, such as number 0, has different references"):
        compare_runs([runs["rows"], runs["references"]])
    results = [run.results for run in runs.values()]
    assert [on_same_data(other, results[0]) for other in results] == [True, False, False]


def test_examples_before_each_prompt_are_drawn_with_their_first_reference(
    model: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    others = [{"question": f"{word} stone", "answers": [f"a {word}", "no"]} for word in WORDS[:5]]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, others)))
    shots = ("--few-shot", "2", "--few-shot-from", str(tmp_path / "train.jsonl"))
    assert run_here(*command(model, dataset, tmp_path / "drawn", *LOCAL, *shots)) == 0
    results = results_of(tmp_path / "drawn")
    examples = [others[row] for row in results["dataset"]["few_shot_rows"]]
    assert len(examples) == 2 and next(iter(results["tasks"].values()))["num_fewshot"] == 2
    written = "".join(f"Question: {row['question']}\nAnswer: {row['answers'][0]}\n\n" for row in examples)
    by_hand = ("--prompt", written + "Question: {question}\nAnswer:")
    assert run_here(*command(model, dataset, tmp_path / "written", *LOCAL, *by_hand)) == 0
    assert predictions(tmp_path / "drawn") == predictions(tmp_path / "written")
    capfd.readouterr()
    assert run_here(*command(model, dataset, tmp_path / "drawn", *LOCAL, *shots, "--few-shot-seed", "3")) == 1
    assert "it differs in the few-shot examples." in capfd.readouterr().err
    other = tmp_path / "other.jsonl"
    other.write_text(dataset.read_text().replace('"question": "', '"question": "O '))
    assert run_here(*command(model, other, tmp_path / "drawn", *LOCAL, *shots, "--few-shot-seed", "3")) == 1
    said = capfd.readouterr().err
    assert "the few-shot examples and the dataset (column 'question' has changed)." in said
    assert run_here(*command(model, dataset, tmp_path / "short", *LOCAL, *shots, "--max-length", "20")) != 0
    assert "no room is left for the question. Give fewer examples, or a larger --max-length." in capfd.readouterr().err


def test_rows_without_a_text_are_listed_kept_out_of_every_metric_and_tried_again(
    model: Path, dataset: Path, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoiled = shutil.copytree(model, tmp_path / "model")
    [odd] = make_tokenizer(VOCABULARY)("thunder", add_special_tokens=False)["input_ids"][:1]
    with edited_tensors(spoiled) as tensors:
        tensors["model.embed_tokens.weight"][odd] = torch.inf
    failing = [number for number, one in enumerate(questions()) if "thunder" in one]
    skipping = ("--on-error", "skip")
    assert run_here(*command(spoiled, dataset, tmp_path / "out", *LOCAL, *skipping)) == 0
    results = results_of(tmp_path / "out")
    found = [failure["index"] for failure in results["failures"]]
    assert found == failing and results["coverage"]["failed"] == len(failing)
    kept = [row for row in range(ROWS) if row not in found]
    assert [row["index"] for row in predictions(tmp_path / "out")] == kept
    assert f"{len(kept)} of {ROWS} texts, each exactly once" in (out := capfd.readouterr().out)
    assert f"{len(found)} failed and are excluded from all metrics" in out
    assert run_here(*command(spoiled, dataset, tmp_path / "few", *LOCAL, *skipping, "--max-failed", "3")) == 1
    assert "failed, more than --max-failed 3 allows" in capfd.readouterr().err
    weights = Path(shutil.copy(model / "model.safetensors", tmp_path))
    weights.replace(spoiled / "model.safetensors")  # not written to: it may still be mapped
    assert run_here(*command(spoiled, dataset, tmp_path / "out", *LOCAL, *skipping)) == 0
    assert [row["text"] for row in predictions(tmp_path / "out")] == expected


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"question": "river", "answers": None}, [], "row 40 (counted from 0): the reference in column 'answers'"),
        ({"question": "river " * 40, "answers": ["a"]}, ["--strict", "--max-length", "40"], "row 40"),
        ({"question": "river", "answers": ["a"]}, ["--max-length", "10"], "leaves no room for a prompt"),
        ({"question": "river", "answers": ["a"]}, ["--metric", "accuracy"], "is not a metric of generated texts"),
        ({"question": "river", "answers": ["a"]}, ["--slice-by", "answers"], "column 'answers' holds list"),
        ({"question": "river", "answers": ["a"], "doc": ""}, ["--group-column", "doc"], "the group in column 'doc'"),
    ],
)
def test_rows_that_cannot_be_used_are_named(
    row: dict[str, Any],
    options: list[str],
    message: str,
    model: Path,
    dataset: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rows.jsonl").write_text(dataset.read_text() + "\n" + json.dumps(row))
    assert run_here(*command(model, tmp_path / "rows.jsonl", tmp_path / "out", *LOCAL, *options)) == 1
    assert message in capfd.readouterr().err


@pytest.mark.slow
def test_texts_are_the_same_through_a_swarm_whose_server_is_killed_on_any_number_of_ranks(
    model: Path, dataset: Path, launcher: Launcher, tmp_path: Path
) -> None:
    longer = ("--max-new-tokens", "60", "--stop", "none of these")  # several batches
    assert run_here(*command(model, dataset, tmp_path / "local", *LOCAL, *longer)) == 0
    expected = (tmp_path / "local" / "predictions.parquet").read_bytes()
    spans = [(0, 2), (0, 2), (2, LAYERS)]
    with ForkedSwarm(str(model), num_blocks=LAYERS, dht_prefix="generating", spans=spans) as swarm:
        for ranks in (1, 3):
            output = tmp_path / str(ranks)
            arguments = command(model, dataset, output, *longer, "--dht-prefix", "generating")
            arguments += ["--audit", "1"] if ranks == 1 else []
            process = launcher.start(*arguments, "--initial-peers", *swarm.initial_peers, ranks=ranks)
            if ranks == 3:
                wait_until_under_way(output, process)
                swarm.kill_server(0)
            _, err = process.communicate(timeout=TIMEOUT)
            assert process.returncode == 0, err
            assert (output / "predictions.parquet").read_bytes() == expected
            results = results_of(output)
            assert results["plan"]["batches"] > 2
            if ranks == 1:
                assert results["audit"]["batches"] == results["plan"]["batches"]
                assert results["audit"]["disputes"] == 0 < results["audit"]["largest_difference"] < 1e-3
    assert not launcher.leftovers()


@pytest.mark.slow
def test_a_killed_run_resumes_on_another_number_of_ranks(
    model: Path, dataset: Path, expected: list[str], launcher: Launcher, tmp_path: Path
) -> None:
    rows = dataset.read_text().splitlines() * 10
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    output = tmp_path / "out"
    arguments = command(model, tmp_path / "rows.jsonl", output, *LOCAL)
    process = launcher.start(*arguments, ranks=3)

    wait_until_under_way(output, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT)
    assert wait_for(lambda: not launcher.processes())
    run = launcher.run(*arguments, "--tracker", "tensorboard", ranks=2)
    assert run.returncode == 0, run.stderr
    assert_tracked(output, "rows/exact_match")
    assert sum(rank["resumed"] for rank in results_of(output)["ranks"]) > 0
    assert [row["text"] for row in predictions(output)] == expected * 10
    assert not launcher.leftovers()
