"""What is said of an error: the cause, wherever its library has put it, in one line."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pydantic
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.errors import CoverageError, DataError, error_summary, one_line, with_place
from dist_eval.results.inputs import Coverage


def raised(action: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        action()
    return caught.value


def load_json(folder: Path, *rows: Sequence[dict[str, Any]]) -> Any:
    import datasets

    paths = [folder / f"{number}.json" for number in range(len(rows))]
    for path, of_file in zip(paths, rows, strict=True):
        path.write_text("\n".join(map(json.dumps, of_file)))
    return datasets.load_dataset("json", data_files=[*map(str, paths)], cache_dir=str(folder / "cache"))


class Broken(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return {0: [1]}[index][4]


def test_a_head_of_another_size_is_named() -> None:
    of_three, of_two = torch.nn.Linear(4, 3), torch.nn.Linear(4, 2)
    assert one_line(raised(lambda: of_two.load_state_dict(of_three.state_dict()))).startswith(
        "Error(s) in loading state_dict for Linear: size mismatch for weight: copying a param with shape "
        "torch.Size([3, 4]) from checkpoint, the shape in current model is torch.Size([2, 4]). size mismatch for bias: "
    )


def test_files_with_different_columns_are_named(tmp_path: Path) -> None:
    text = one_line(raised(lambda: load_json(tmp_path, [{"a": 1, "b": "x"}], [{"a": 1, "c": "x"}])))
    assert text.startswith("An error occurred while generating the dataset (Couldn't cast a: int64 c: string")
    assert text.endswith("because column names don't match)")


def test_the_error_that_it_was_raised_from_is_named(tmp_path: Path) -> None:
    import datasets

    (tmp_path / "rows.json").write_text('{"a": 1}\n{"a": ')
    files = {"data_files": str(tmp_path / "rows.json"), "cache_dir": str(tmp_path / "cache")}
    assert error_summary(raised(lambda: datasets.load_dataset("json", **files))) == (
        "DatasetGenerationError: An error occurred while generating the dataset (JSON parse error: Invalid value. in "
        "row 1)"
    )


def test_of_a_quoted_traceback_the_error_is_left() -> None:
    loader = torch.utils.data.DataLoader(Broken(), num_workers=1)
    assert error_summary(raised(lambda: list(loader))) == (
        "IndexError: Caught IndexError in DataLoader worker process 0. IndexError: list index out of range"
    )


def test_a_stack_trace_is_left_out() -> None:
    trace = "Exception raised from recvBytes at /pytorch/TCPStore.hpp:7 (most recent call first):\nframe #0: c10::Error"
    error = RuntimeError(f"failed to recv, got 0 bytes\n{trace}")
    assert one_line(error) == "failed to recv, got 0 bytes"


def test_of_yaml_the_problem_is_left() -> None:
    error = raised(lambda: yaml.safe_load("a: {\nb: ["))
    assert one_line(error) == "expected the node content, but found '<stream end>', line 2"


def test_a_field_of_pydantic_is_named() -> None:
    error = raised(lambda: pydantic.create_model("Record", size=int)(size="x"))
    assert one_line(error).startswith("1 validation error for Record size. Input should be a valid integer, unable")


@pytest.mark.parametrize(
    ("error", "text", "summary"),
    [
        (KeyError("label"), "KeyError: 'label'", "KeyError: 'label'"),
        (AssertionError(), "AssertionError", "AssertionError"),
        (ValueError(" \n\nno such row\n"), "no such row", "ValueError: no such row"),
        (DataError("row 7: " + "x" * 999), "row 7: " + "x" * 999, "DataError: row 7: " + "x" * 999),
    ],
)
def test_every_error_says_something(error: Exception, text: str, summary: str) -> None:
    assert (one_line(error), error_summary(error)) == (text, summary)


def test_errors_of_this_package_name_their_cause_themselves() -> None:
    error = DataError("row 7 is empty")
    error.__cause__ = ValueError("empty")
    assert one_line(error) == "row 7 is empty"
    outer = RuntimeError("a worker failed")
    outer.__cause__ = error
    assert one_line(outer) == "a worker failed (row 7 is empty)"


@given(st.lists(st.text(), min_size=1, max_size=3), st.booleans())
def test_it_is_one_short_line(texts: list[str], is_cycle: bool) -> None:
    errors = [ValueError(text) for text in texts]
    for error, cause in zip(errors, errors[1:] + errors[:1] * is_cycle, strict=False):
        error.__cause__ = cause
    text = one_line(errors[0])
    assert text and len(text.splitlines()) == 1 and len(text) <= 603 and text == text.strip()


def test_a_huge_text_takes_no_time() -> None:
    assert one_line(ValueError("x" * 10_000_000)) == "x" * 297 + "..."
    assert len(one_line(ValueError("x\n" * 1_000_000))) == 300


def test_the_place_of_an_error_keeps_what_else_it_says() -> None:
    error = CoverageError("Rows are missing.", Coverage(expected=9, seen=8, duplicates=0, missing=1))
    error.transient = True
    found = with_place(error, "Batch 3")
    assert (str(found), type(found)) == ("Batch 3: Rows are missing.", CoverageError)
    assert found.transient and found.coverage == error.coverage
