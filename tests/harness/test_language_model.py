"""What the harness' requests become: token ids as its own backend makes them, windows, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness_tasks import make_tokenizer

from dist_eval.data.answers import log_likelihood_columns
from dist_eval.errors import ConfigError, DataError

pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
from lm_eval.api.instance import Instance

from dist_eval.harness.language_model import HarnessModel, Pair

VOCABULARY = 128
TOKENIZER = make_tokenizer(VOCABULARY)


def request(kind: str, *arguments: str, number: int = 0) -> Instance:
    return Instance(kind, {}, arguments, 0, metadata=("stories", number, 1))


def asked(requests: list[Instance], **options: Any) -> tuple[list[Pair], HarnessModel]:
    """Returns the texts that requests become; each is answered with its number."""
    seen: list[Pair] = []

    def answer(pairs: Iterator[Pair]) -> np.ndarray:
        seen.extend(pairs)
        answers = np.zeros(len(seen), dtype=log_likelihood_columns())
        answers["log_likelihood"], answers["is_greedy"] = range(len(seen)), [n % 2 for n in range(len(seen))]
        return answers

    options = {"max_length": 16, "vocab_size": VOCABULARY, **options}
    model = HarnessModel(TOKENIZER, [SimpleNamespace(instances=requests)], answer, **options)
    model.loglikelihood([])
    return seen, model


def ids(text: str, *, begins: bool = True) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=begins))


def test_all_requests_of_all_types_are_answered_at_the_first_call() -> None:
    requests = [
        request("loglikelihood", "river stone", " winter"),
        request("loglikelihood_rolling", " ".join(["garden"] * 40)),
        request("loglikelihood", "", "silver copper"),
    ]
    seen, model = asked(requests, max_length=15)
    [first, *windows, last] = seen
    assert first == (ids("river stone"), ids("river stone winter")[len(ids("river stone")) :])
    assert last == ([1], ids("silver copper", begins=False))
    assert [token for _, predicted in windows for token in predicted] == ids(" ".join(["garden"] * 40))
    assert windows[0][0] == [TOKENIZER.bos_token_id]
    assert all(len(context) + len(predicted) <= 16 for context, predicted in windows)
    assert model.loglikelihood([requests[2], requests[0]]) == [(len(seen) - 1.0, len(seen) % 2 == 0), (0.0, False)]
    assert model.loglikelihood_rolling([requests[1]]) == [sum(range(1, len(seen) - 1))]


def test_spaces_and_a_first_token_that_is_there_already() -> None:
    [(context, continuation)], _ = asked([request("loglikelihood", "<s>river ", "stone")])
    assert context == ids("<s>river", begins=False) and continuation == ids("<s>river stone", begins=False)[2:]


@pytest.mark.parametrize(
    ("asks", "options", "message"),
    [
        (request("loglikelihood", "river", ""), {}, "Task stories, document 3: a continuation has no tokens."),
        (
            request("loglikelihood", "river", " stone" * 99),
            {},
            r"document 3: a continuation has \d+ tokens, more than the 16 that can be sent",
        ),
        (
            request("loglikelihood", "river" * 99, " stone"),
            {"strict": True},
            "more than --max-length 17, and --strict forbids to cut them",
        ),
        (request("loglikelihood", "river", " stone"), {"vocab_size": 5}, "but the model knows only 5 ids"),
    ],
)
def test_what_cannot_be_sent_names_task_and_document(asks: Instance, options: dict[str, Any], message: str) -> None:
    asks.doc_id = 3
    with pytest.raises(DataError, match=message):
        asked([request("loglikelihood", "river", " stone"), asks], **options)


def test_generated_text_is_refused_before_anything_is_asked() -> None:
    requests = [request("loglikelihood", "river", " stone"), request("generate_until", "river", "{}")]
    with pytest.raises(ConfigError, match="The task stories needs generated text"):
        asked(requests)


def test_a_chat_template_may_leave_the_answer_open() -> None:
    tokenizer = make_tokenizer(VOCABULARY)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }} [end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    model = HarnessModel(tokenizer, [], lambda pairs: np.empty(0), max_length=9, vocab_size=9)
    chat = [{"role": "user", "content": "river"}]
    assert model.apply_chat_template(chat) == "[user] river [end][assistant]"
    assert model.apply_chat_template(chat, add_generation_prompt=False) == "[user] river"
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(ConfigError, match="chat template fails: no system role"):
        model.apply_chat_template(chat)
