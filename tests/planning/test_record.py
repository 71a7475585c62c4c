"""What a plan says of the data: what was cut, and which labels occur, for every problem type; and its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from samples import FACTS, tokenized_digits

from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.planning.record import (
    LabelCount,
    NetworkValues,
    PlannedRun,
    TargetRange,
    TimeEstimate,
    cut_texts,
    label_counts,
    target_ranges,
    text_lengths,
)
from dist_eval.planning.table import format_plan

NAMES = ["neg", "pos", "mixed"]
TIME = TimeEstimate(
    seconds=11_000,
    low=10_000,
    high=12_300,
    start_up=14,
    probe_batches=96,
    probe_seconds=31,
    tokens_per_second=3120,
    first_answer=1.25,
)


def planned(**changes: Any) -> PlannedRun:
    lengths = text_lengths(np.array([3, 3, 4, 5, 9]))
    cut = {"texts": 0, "tokens": 0, "share": 0.0, "median": 0.0, "most": 0}
    known = {"ranks": 3, "data": FACTS["data"], "lengths": lengths, "cut": cut, "labels": [], "targets": []}
    known |= {"examples": 5, "prompts": None, "confidence": 0.95, "half_width": 0.0982}
    return PlannedRun(**{**known, "plan": FACTS["plan"], "network": None, "time": TIME, **changes})


def test_what_texts_have_lost_is_known(tmp_path: Path) -> None:
    whole = tokenized_digits(tmp_path, 30, 3)
    kept = whole.lengths.copy()
    assert cut_texts(whole).texts == 0
    short = tokenized_digits(tmp_path, 30, 3, max_length=6)
    assert (short.cut == (kept - 6)[kept > 6]).all()
    found = cut_texts(short)
    assert found.texts == short.facts.truncated == (kept > 6).sum()
    assert found.tokens == kept.sum() - short.lengths.sum()
    assert found.share == found.tokens / kept.sum()
    assert found.most == short.facts.longest - 6


def test_every_class_of_the_head_is_counted() -> None:
    found = label_counts(np.array([2, 0, 0, 2, 0]), NAMES, SINGLE_LABEL)
    assert [(one.label, one.examples, one.share) for one in found] == [
        ("neg", 3, 0.6),
        ("pos", 0, 0),
        ("mixed", 2, 0.4),
    ]
    several = np.array([[1, 0, 1], [1, 0, 0]], dtype=bool)
    assert [one.examples for one in label_counts(several, NAMES, MULTI_LABEL)] == [2, 0, 1]
    targets = np.array([[0.5, -1, 3], [1.5, 1, 3]])
    assert label_counts(targets, NAMES, REGRESSION) == []
    assert target_ranges(targets, NAMES, REGRESSION)[1] == TargetRange(output="pos", lowest=-1, mean=0, highest=1)
    assert target_ranges(several, NAMES, MULTI_LABEL) == []


def test_the_text_has_time_and_traffic() -> None:
    network = NetworkValues(ids=1000, prompts=10, deep_prompts=90, outputs=500, activations=2_500_000)
    said = format_plan(planned(network=network))
    assert "batches: 2, up to 1 for each of 3 ranks" in said
    assert "bytes: 8.2 kB to the swarm, 1 kB back, 5 MB from each server to the next;" in said
    assert "time: about 3 h 3 min at the speed of the probe (2 h 47 min to 3 h 25 min), after 14 s" in said
    assert "probe: 96 batches in 31.0 s on 3 ranks, the first in 1.25 s; 3120 tokens/s in its second half" in said
    few = format_plan(planned(time=TIME.model_copy(update={"low": None, "high": None})))
    assert "time: about 3 h 3 min at the speed of the probe (too few answers for a range" in few


def test_of_many_classes_the_most_frequent_ones_are_shown() -> None:
    labels = [LabelCount(label=f"c{number}", examples=max(0, number - 12), share=0) for number in range(60)]
    lines = format_plan(planned(labels=labels)).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("c") and line[1].isdigit()][:2] == ["c59", "c58"]
    assert "... and 7 rarer ones" in lines
    assert f"without any example: {', '.join(f'c{number}' for number in range(10))} and 3 more" in lines


def test_a_regression_has_targets() -> None:
    said = format_plan(planned(targets=[TargetRange(output="score", lowest=-1.5, mean=0.25, highest=1e6)]))
    assert "target  lowest  mean  highest\nscore     -1.5  0.25    1e+06\n" in said
