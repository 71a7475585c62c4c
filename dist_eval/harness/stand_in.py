"""A model that answers without computing anything, for checks of tasks."""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from dist_eval.harness.instances import decoding_of


class StandInModel(LM):  # type: ignore[misc]
    """Gives every request an answer without a model, so that all else of a task can be tried."""

    tokenizer_name = ""

    def loglikelihood(self, requests: list[Instance], **_: Any) -> list[tuple[float, bool]]:
        """Returns log-likelihoods that are all the same."""
        return [(-1.0, False) for _ in requests]

    def loglikelihood_rolling(self, requests: list[Instance], **_: Any) -> list[float]:
        """Returns log-likelihoods that are all the same."""
        return [-1.0 for _ in requests]

    def generate_until(self, requests: list[Instance], **_: Any) -> list[str]:
        """Returns texts that are all the same, if they could be generated."""
        for request in requests:
            decoding_of(request, None, 0)
        return ["answer" for _ in requests]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns a conversation without a template."""
        return "\n".join(f"{message['role']}: {message['content']}" for message in chat_history)
