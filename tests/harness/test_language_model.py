"""What the harness' requests become: token ids as its own backend makes them, windows, and errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness_tasks import WORDS, make_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.data.answers import generation_columns, log_likelihood_columns
from dist_eval.data.generation import text_of
from dist_eval.errors import ConfigError, DataError
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.generation import Generator, end_tokens_of
from dist_eval.model.generation_config import GenerationSettings
from dist_eval.model.language_model import LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.petals.base_model.config import read_base_config

pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
from lm_eval.api.instance import Instance
from lm_eval.models.utils import postprocess_generated_text

from dist_eval.harness.language_model import HarnessModel, Pair, Prompt

VOCABULARY = 128
TOKENIZER = make_tokenizer(VOCABULARY)


def request(kind: str, *arguments: Any, number: int = 0, repeats: int = 1) -> Instance:
    return Instance(kind, {}, arguments, 0, metadata=("stories", number, repeats))


def asked(requests: list[Instance], **options: Any) -> tuple[list[Pair], HarnessModel]:
    """Returns the texts that requests become; each is answered with its number."""
    seen: list[Pair] = []

    def answer(pairs: Iterator[Pair], prompts: Iterator[Prompt]) -> np.ndarray:
        seen.extend(pairs)
        assert not list(prompts)
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
        (request("loglikelihood", "", ""), {}, "document 3: context and continuation are both empty."),
        (
            request("loglikelihood", "river", 18),
            {},
            r"document 3: the target \(doc_to_target\) must be a string, got 18 \(int\).",
        ),
        (
            request("loglikelihood_rolling", ["river"]),
            {},
            r"document 3: the target \(doc_to_target\) must be a string, got \['river'\] \(list\).",
        ),
        (request("loglikelihood", None, "river"), {}, r"the context \(doc_to_text\) must be a string, got None"),
        (
            request("loglikelihood", "river", " stone" * 99),
            {},
            r"document 3: a continuation has \d+ tokens, more than the 16 that can be sent",
        ),
        (
            request("loglikelihood", "river" * 99, " stone"),
            {"strict": True},
            "more than --max-length 17, and --strict forbids cutting them",
        ),
        (request("loglikelihood", "river", " stone"), {"vocab_size": 5}, "but the model knows only 5 ids"),
    ],
)
def test_what_cannot_be_sent_names_task_and_document(asks: Instance, options: dict[str, Any], message: str) -> None:
    asks.doc_id = 3
    with pytest.raises(DataError, match=message):
        asked([request("loglikelihood", "river", " stone"), asks], **options)


def prompted(requests: list[Instance], **options: Any) -> tuple[list[Prompt], HarnessModel]:
    """Returns the prompts that requests become; the text after each is its number, and `winter`."""
    seen: list[Prompt] = []

    def answer(pairs: Iterator[Pair], prompts: Iterator[Prompt]) -> np.ndarray:
        assert not list(pairs)
        seen.extend(prompts)
        answers = np.zeros(len(seen), dtype=generation_columns(20))
        for row, text in enumerate(answers):
            tokens = ids(f"{WORDS[row]} winter", begins=False)
            text["tokens"][: len(tokens)], text["length"] = tokens, len(tokens)
        return answers

    options = {"max_length": 40, "vocab_size": VOCABULARY, **options}
    model = HarnessModel(TOKENIZER, [SimpleNamespace(instances=requests)], answer, **options)
    model.loglikelihood([])
    return seen, model


def test_texts_are_generated_as_the_harness_own_backend_does_and_cut_at_stop_strings() -> None:
    greedy = {"until": "winter", "max_gen_toks": 9, "do_sample": False, "temperature": 0.7}
    drawn = {"until": [], "do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 5}
    requests = [
        request("generate_until", "river", greedy, repeats=2),
        request("generate_until", "<s>stone", drawn, repeats=2),
    ]
    seen, model = prompted(requests, seed=3)
    assert [tokens for tokens, _ in seen] == [ids("river"), *2 * [ids("stone")]]
    assert seen[0][1].model_dump(exclude_defaults=True) == {"max_new_tokens": 9, "stop": ["winter", "</s>"]}
    settings = {"max_new_tokens": 5, "stop": ["</s>"], "temperature": 0.7, "top_k": 50, "top_p": 0.9, "seed": 3}
    assert seen[1][1].model_dump() == seen[2][1].model_dump() == settings
    asked = [requests[1], requests[0], requests[0], requests[1]]
    found = [text.strip() for text in model.generate_until(asked)]
    assert found == [f"{WORDS[1]} winter", WORDS[0], WORDS[0], f"{WORDS[2]} winter"]


def test_thinking_is_no_part_of_a_text() -> None:
    said: list[str] = []
    settings = {"until": [], "max_gen_toks": 3}
    requests = [request("generate_until", "river", settings, number=number) for number in range(2)]
    first = ids(WORDS[0], begins=False)
    for end, found in ((WORDS[0], ["winter", f"{WORDS[1]} winter"]), (first[-1], ["winter", f"{WORDS[1]} winter"])):
        _, model = prompted(requests, think_end=end, say=lambda text, kind=None: said.append(text))
        assert model.generate_until(requests) == found
    assert len(said) == 2 and said[0].startswith("Task stories: 1 texts have no --think-end-token, so the whole text")


@given(
    st.lists(st.sampled_from(WORDS), max_size=6), st.sampled_from(WORDS), st.lists(st.sampled_from(WORDS), max_size=2)
)
def test_the_end_of_thinking_is_looked_for_as_by_the_harness(words: list[str], end: str, stop: list[str]) -> None:
    tokens = ids(" ".join(words), begins=False)
    theirs = postprocess_generated_text(TOKENIZER.decode(tokens, skip_special_tokens=True), stop, end)
    assert text_of(tokens, stop, TOKENIZER, end) == theirs


@pytest.mark.parametrize(
    ("settings", "options", "error", "message"),
    [
        ({"num_beams": 4}, {}, ConfigError, "The task stories generates with num_beams: 4, which is not supported"),
        ({"max_gen_tok": 4}, {}, ConfigError, r"max_gen_tok: 4, .* --gen-kwargs\)\. Did you mean max_gen_toks"),
        ({"temperature": "warm"}, {}, ConfigError, "The task stories cannot generate with .*'warm'.*could not convert"),
        ({"do_sample": True}, {}, ConfigError, "do_sample. with a temperature of 0"),
        ({"max_gen_toks": 0}, {}, ConfigError, "cannot generate with max_new_tokens: 0"),
        ({}, {}, DataError, r"document 0: it asks for up to 256 new tokens \(max_gen_toks\), which leaves no room"),
        ({"max_gen_toks": 39}, {"strict": True}, DataError, "more than the 1 that --max-length 41 leaves"),
        ({"max_gen_toks": 3}, {"vocab_size": 5}, DataError, "but the model knows only 5 ids"),
    ],
)
def test_texts_that_cannot_be_generated(
    settings: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prompted([request("generate_until", "river stone", {"num_beams": 1, **settings})], **options)


def test_a_chat_template_may_leave_the_answer_open() -> None:
    tokenizer = make_tokenizer(VOCABULARY)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }} [end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    model = HarnessModel(tokenizer, [], lambda pairs, prompts: np.empty(0), max_length=9, vocab_size=9)
    chat = [{"role": "user", "content": "river"}]
    assert model.apply_chat_template(chat) == "[user] river [end][assistant]"
    assert model.apply_chat_template(chat, add_generation_prompt=False) == "[user] river"
    for begun in ("Say:\n```\n", "["):  # white space stays, and what the template adds is no part of it
        code = [*chat, {"role": "assistant", "content": begun}]
        text = model.apply_chat_template(code, add_generation_prompt=False)
        assert text == f"[user] river [end][assistant] {begun}"
    tokenizer.chat_template = "{{ messages[0].content | upper }}"
    with pytest.raises(ConfigError, match="the tokenizer's chat template fails"):
        model.apply_chat_template(chat, add_generation_prompt=False)
    for template in ("{{ raise_exception('no such role') }}", "{{ 1 / 0 }}"):
        tokenizer.chat_template = template
        with pytest.raises(ConfigError, match=r"chat template fails: (no such role|division by zero)"):
            model.apply_chat_template([{"role": "system", "content": "Answer."}, *chat])


def test_a_chat_template_that_refuses_system_messages_gets_none() -> None:
    tokenizer, said = make_tokenizer(VOCABULARY), list[str]()
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "[{{ m.role }}] {{ m.content }}{% endfor %}"
    )
    model = HarnessModel(tokenizer, [], lambda *_: np.empty(0), max_length=9, vocab_size=9, say=said.append)
    chat = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "river"}]
    text = model.apply_chat_template(chat)
    assert text == "<s>[user] river" and model.tok_encode(text).count(tokenizer.bos_token_id) == 1
    assert said == [
        "The chat template refuses system messages (System role not supported): descriptions of tasks are left out, as "
        "with the harness' own backend."
    ]


def test_what_the_harness_makes_of_rolling_texts_without_a_word_is_said() -> None:
    said: list[str] = []
    requests = [request("loglikelihood_rolling", text, number=n) for n, text in enumerate(["river", ""])]
    seen, _ = asked(requests, say=lambda text, kind=None: said.append(text))
    assert [context == continuation[:1] == [TOKENIZER.bos_token_id] for context, continuation in seen] == [True, True]
    assert "Task stories: texts begin with <s>. The harness adds another one" in said[1]
    assert said[0] == "Task stories, document 1: the text is empty."


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ({"repetition_penalty": 1.7, "min_new_tokens": 3}, {}),
        ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.0, "no_repeat_ngram_size": 1}),
        ({"num_beams": 3, "do_sample": True, "top_p": 0.3}, {"num_beams": 1}),
    ],
)
def test_texts_follow_the_generation_config_as_with_the_harness_own_backend(
    config: dict[str, Any], asked: dict[str, Any], tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    """Stop strings may stand anywhere in a token."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "model"
    shutil.copytree(tiny_models["llama"], folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **config}))
    settings = {"until": ["ilv", "ridg"], "max_gen_toks": 12, "do_sample": False, **asked}
    requests = [request("generate_until", " ".join(WORDS[row : row + 3]), settings, number=row) for row in range(8)]
    theirs: Any = HFLM(pretrained=AutoModelForCausalLM.from_pretrained(folder), tokenizer=TOKENIZER, batch_size=1)
    expected = theirs.generate_until(requests, disable_tqdm=True)

    def answer(pairs: Iterator[Pair], prompts: Iterator[Prompt]) -> np.ndarray:
        name, found = str(folder), []
        language_model = LanguageModel(load_local_backbone(name), OutputEmbedding(name, read_base_config(name)))
        for context, decoding in prompts:
            generator = Generator(language_model, [decoding], TOKENIZER, end_tokens_of(name, TOKENIZER))
            text = generator.answer(torch.tensor([context]), torch.tensor([[len(context), 0, 0]]))
            found.append((text["tokens"][0].numpy(), int(text["length"][0])))
        assert not list(pairs)
        return np.array(found, dtype=generation_columns(12))

    model = HarnessModel(
        *(TOKENIZER, [SimpleNamespace(instances=requests)], answer),
        max_length=100,
        vocab_size=VOCABULARY,
        generation=lambda: GenerationSettings(str(folder)),
    )
    assert model.generate_until(requests) == expected
    assert len({*expected}) > 1


def test_a_generation_config_that_cannot_be_followed_names_the_task(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.1, "max_new_tokens": 5, "top_k": 20, "top_p": 0.5}')
    options: dict[str, Any] = {"generation": lambda: GenerationSettings(str(tmp_path)), "say": said.append}
    greedy, drawn = ({"max_gen_toks": 9, **more} for more in ({}, {"do_sample": True, "temperature": 0.7}))
    prompted([request("generate_until", "river", greedy)], **options)
    assert [text.split(",")[0] for text in said] == ["The model's generation config has max_new_tokens: 5"]
    with pytest.raises(ConfigError, match=r"The task stories: .*generation_config\.json has min_p: 0\.1"):
        prompted([request("generate_until", "river", drawn)], **options)
    (tmp_path / "generation_config.json").write_text('{"top_k": 20, "top_p": 0.5}')
    [(_, decoding)], _ = prompted([request("generate_until", "river", drawn)], **options)
    assert (decoding.top_k, decoding.top_p) == (20, 0.5)
