"""Prompts in a chat template: the text is transformers', and the lm-evaluation-harness', of the same conversation."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from harness_tasks import make_tokenizer
from tiny_models import VOCABULARY

from dist_eval.data import chat
from dist_eval.data.chat import Frame, set_chat_time
from dist_eval.data.prompts import PromptedWords, Template
from dist_eval.data.tokenizers import token_ids
from dist_eval.errors import ConfigError

BEGUN = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} {% endfor %}"
TEMPLATES = {
    "begins with BOS": BEGUN + "{% if add_generation_prompt %}[assistant]{% endif %}",
    "ends with a line break": "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}</{{ m.role }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}",
    "ends with a blank": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
}
QUESTIONS = ["river stone", "Answer: {text} winter"]


@pytest.fixture(params=TEMPLATES.values(), ids=TEMPLATES)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    made = make_tokenizer(VOCABULARY)
    made.chat_template = request.param
    return made


def theirs(tokenizer: Any, question: str, system: str | None) -> str:
    messages = [{"role": "user", "content": question}]
    messages = [{"role": "system", "content": system}, *messages] if system else messages
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@pytest.mark.parametrize("system", [None, "river {{ stone }}"])
@pytest.mark.parametrize("template", ["Question: {text}\nAnswer:", "{text} "])
def test_prompts_and_words_are_tokenized_as_transformers_chat_and_the_word(
    tokenizer: Any, template: str, system: str | None
) -> None:
    frame, words = Frame(tokenizer, system, is_chat=True), ["garden", "market bridge"]
    prompted = PromptedWords(Template(template), words, tokenizer, frame=frame)
    prompts, _ = token_ids(tokenizer, prompted.render([QUESTIONS], 0, str))
    for ids, question in zip(prompts, QUESTIONS, strict=True):
        text = theirs(tokenizer, template.replace("{text}", question), system)
        for word, own in zip(words, prompted.tokens, strict=True):
            special = not text.startswith(tokenizer.bos_token)  # as the harness does: BOS is not doubled
            assert ids + own == tokenizer(text + word, add_special_tokens=special)["input_ids"]


@pytest.mark.parametrize("system", [None, "Answer with a word."])
@pytest.mark.parametrize("is_chat", [False, True])
def test_examples_and_system_instruction_stand_where_the_harness_puts_them(
    tokenizer: Any, is_chat: bool, system: str | None
) -> None:
    from lm_eval.api.utils import Message, messages_to_text, multiturn_to_singleturn

    frame = Frame(tokenizer, system, is_chat=is_chat)
    prompted = PromptedWords(Template("Q: {text}\nA:"), ["garden", "bridge"], tokenizer, frame=frame)
    prompted.put_before(prompted.with_words([["one", "two"]], [1, 0]), "\n\n")
    turns = [Message("system", system)] if system else []
    for question, answer in (("one", " bridge"), ("two", " garden")):
        turns += [Message("user", f"Q: {question}\nA:"), Message("assistant", answer, "\n\n")]
    turns.append(Message("user", "Q: river\nA:"))
    expected = messages_to_text(turns)
    if is_chat:
        expected = tokenizer.apply_chat_template(
            multiturn_to_singleturn(turns), tokenize=False, add_generation_prompt=True
        ).rstrip()
    [found] = prompted.render([["river"]], 0, str)
    assert found.rstrip() == expected
    assert prompted.tokens_before() > len(token_ids(tokenizer, [prompted.before])[0][0]) or not (system or is_chat)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_reads_the_time_that_was_set(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer(VOCABULARY)
    dated = "{% set d = strftime_now('%d %b %Y, %A %-d%%d %F') %} {{ d }}"
    for begin in ("\n ", "", "  {% if true %}A{% endif %}", "  {# comment #}\n"):
        tokenizer.chat_template = begin + template + dated
        monkeypatch.setattr(chat, "_time", None)
        set_chat_time(datetime.now())
        assert Frame(tokenizer, is_chat=True).around("river") == theirs(tokenizer, "river", None)
        set_chat_time(datetime(2024, 2, 9))
        assert Frame(tokenizer, is_chat=True).around("river").endswith(" 09 Feb 2024, Friday 9%d 2024-02-09")


@pytest.mark.parametrize(
    ("template", "system", "message"),
    [
        (None, None, "--apply-chat-template: the model's tokenizer has no chat template"),
        ("{{ raise_exception('no such role') }}", None, "--apply-chat-template: .* template fails: no such role"),
        ("{{ messages[0].content.unknown() }}", None, "--apply-chat-template: .* template fails: "),
        ("Hello", None, "omits the user's message"),
        ("{{ messages[-1].content }}", "Be brief.", "--system-instruction: .* accepts no system message .it omits"),
        (
            "{% if messages | length > 1 %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}",
            "Be brief.",
            "--system-instruction: .* accepts no system message .no system.* Put it into --prompt instead",
        ),
    ],
)
def test_a_template_that_would_lose_something_is_refused(
    template: str | None, system: str | None, message: str
) -> None:
    tokenizer = make_tokenizer(VOCABULARY)
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=message):
        Frame(tokenizer, system, is_chat=True)
