"""Frames prompts with a system instruction or the tokenizer's chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dist_eval.errors import ConfigError, one_line

_CONTENT = "0prompt0"  # templates leave it unchanged
# What transformers gives templates, for a time that is set; a template's variables cannot be functions
_STRFTIME = """{% macro strftime_now(format) %}{% set now = namespace(text=format) %}\
{% for code, value in chat_time.items() %}{% set now.text = now.text | replace(code, value) %}{% endfor %}\
{{ now.text }}{% endmacro %}
"""  # the line break, which the template does not show, puts its beginning at that of a line
_CODE = re.compile(r"%[-_0^#]?[A-Za-z]")
_PERCENT = "\x00"
_time: datetime | None = None


def set_chat_time(time: datetime) -> None:
    """Sets the time that chat templates read in this process; otherwise, they read the current time."""
    global _time
    _time = time


def render_chat(tokenizer: Any, messages: Sequence[dict[str, str]], **options: Any) -> str:
    """Renders a conversation with a tokenizer's chat template.

    Each message has a `role` (system, user or assistant) and `content`; the options are those of `apply_chat_template`.
    Raises `jinja2.TemplateError` if the template refuses the conversation, and a `ConfigError` if it fails otherwise.
    """
    from jinja2 import TemplateError

    try:
        if _time:
            template = tokenizer.get_chat_template(options.get("chat_template"))
            options["chat_template"] = _STRFTIME + template
            options["chat_time"] = _values_of(_time, {*_CODE.findall(template)})
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except TemplateError:
        raise
    except Exception as error:  # raised by the template's own expressions
        raise template_fault(error) from error


def template_fault(error: Exception) -> ConfigError:
    """Returns the error for a chat template that fails."""
    return ConfigError(f"--apply-chat-template: the tokenizer's chat template fails: {one_line(error)}")


def _values_of(time: datetime, codes: set[str]) -> dict[str, str]:
    """Returns what replaces codes of `strftime`, in this order; a percent sign of its own is kept out of their way."""
    return {"%%": _PERCENT, **{code: time.strftime(code) for code in sorted(codes)}, _PERCENT: "%"}


class Frame:
    """Frames each prompt as the lm-evaluation-harness frames a question and its examples.

    Without a chat template, the system instruction precedes the prompt. With one, it is the system message, and the
    prompt with its examples is the user's message. The template adds the start of the assistant's answer, and `tail` is
    the text that it adds after a prompt; empty without one. A template that accepts no system message or omits the
    prompt is refused.
    """

    def __init__(self, tokenizer: Any, system_instruction: str | None = None, *, is_chat: bool = False) -> None:
        self._tokenizer, self._system, self.is_chat, self.tail = tokenizer, system_instruction or "", is_chat, ""
        if not is_chat:
            return
        if not tokenizer.chat_template:
            raise ConfigError(
                "--apply-chat-template: the model's tokenizer has no chat template. Choose a chat model or "
                "leave the option out."
            )
        before, shown, self.tail = self.around(_CONTENT).rpartition(_CONTENT)
        if not shown:
            raise ConfigError("--apply-chat-template: the tokenizer's chat template omits the user's message.")
        if self._system and self._system.strip() not in before:
            raise self._no_system_message("it omits the message")

    def around(self, text: str) -> str:
        """Frames a prompt with the examples before it."""
        if not self.is_chat:
            return self._system + text.removeprefix(self._tokenizer.bos_token or "") if self._system else text
        from jinja2 import TemplateError

        messages = [{"role": "user", "content": text}]
        if self._system:
            messages.insert(0, {"role": "system", "content": self._system})
        try:
            return render_chat(self._tokenizer, messages, add_generation_prompt=True)
        except TemplateError as error:
            raise (self._no_system_message(one_line(error)) if self._system else template_fault(error)) from error

    @staticmethod
    def _no_system_message(why: str) -> ConfigError:
        return ConfigError(
            f"--system-instruction: the tokenizer's chat template accepts no system message ({why}). Put it "
            "into --prompt instead."
        )
