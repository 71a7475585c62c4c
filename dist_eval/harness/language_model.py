"""The model that the harness sees: its requests become token ids and are answered all at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from dist_eval.data.chat import render_chat, template_fault
from dist_eval.data.generation import text_of
from dist_eval.errors import DataError, one_line
from dist_eval.harness.decodings import decoding_of, texts_asked_for
from dist_eval.model.generation_config import GenerationSettings
from dist_eval.results.inputs import Decoding

ROLLING = "loglikelihood_rolling"


def text_argument(instance: Instance, number: int) -> str:
    """Returns one of the texts of a request."""
    text = instance.args[number]
    if not isinstance(text, str):
        is_target = number == 1 or instance.request_type == ROLLING
        what = "target (doc_to_target)" if is_target else "context (doc_to_text)"
        raise problem_of(instance, f"the {what} must be a string, got {text!r:.40} ({type(text).__name__})")
    return text


def problem_of(instance: Instance, problem: str) -> DataError:
    """Returns an error that names a request's task and document."""
    return DataError(f"Task {instance.task_name}, document {document_of(instance)}: {problem}.")


def document_of(instance: Instance) -> int:
    """Returns the number of a request's document in the data, which differs from `doc_id` with --samples."""
    return int(getattr(instance, "document", instance.doc_id))


Pair = tuple[list[int], list[int]]
"""Token ids of a context and its continuation."""

Prompt = tuple[list[int], Decoding]
"""Token ids of a prompt, and how to generate the text after it."""

Answer = Callable[[Iterator[Pair], Iterator[Prompt]], np.ndarray]
"""Answers contexts and continuations, then prompts, in order, with the columns of `log_likelihood_columns` and
`generation_columns`, of shape [n]."""

_GENERATION = "generate_until"
_TOKENIZED_AT_ONCE = 1000


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A language model for the harness that answers the requests of all tasks at the first call.

    Token ids equal those of the harness' own Hugging Face backend (`lm_eval.models.huggingface.HFLM`).
    """

    def __init__(
        self,
        tokenizer: Any,
        tasks: Sequence[Any],
        answer: Answer,
        *,
        max_length: int,
        vocab_size: int,
        strict: bool = False,
        seed: int = 0,
        think_end: str | int | None = None,
        template_options: Mapping[str, Any] | None = None,
        generation: Callable[[], GenerationSettings | None] = lambda: None,
        say: Callable[..., None] = lambda *_: None,
    ) -> None:
        super().__init__()
        self.tokenizer, self.max_length = tokenizer, max_length
        self._tasks, self._answer, self._vocab_size, self._strict = tasks, answer, vocab_size, strict
        self._seed, self._think_end, self._template_options, self._say = seed, think_end, template_options or {}, say
        self._generation = generation
        # of all tasks, in the order of the answers, each with its number of answers; complete once all texts were read
        self._requests: list[tuple[Instance, int]] = []
        self._decodings: dict[int, Decoding] = {}
        self._responses: dict[int, list[Any]] | None = None

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        responses = self._all_responses()
        return [responses[id(request)][0] for request in requests]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Returns the log-likelihood of each text; windows predict each token once."""
        responses = self._all_responses()
        return [responses[id(request)][0] for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Returns the text after each context; a repeated request has a text for each repeat."""
        responses = self._all_responses()
        times: Counter[int] = Counter()
        found = []
        for request in requests:
            texts = responses[id(request)]
            found.append(texts[times[id(request)] % len(texts)])
            times[id(request)] += 1
        return found

    def _respond(self, request: Instance, answers: np.ndarray) -> list[Any]:
        """Returns the answers in the harness' form: a number, a number and a flag, or texts."""
        if request.request_type == _GENERATION:
            stop = self._decodings[id(request)].stop
            return [text_of(tokens, stop, self.tokenizer, self._think_end) for tokens in map(_tokens_of, answers)]
        value = sum(answers["log_likelihood"].tolist())
        return [value if request.request_type == ROLLING else (value, bool(answers["is_greedy"].all()))]

    def _all_responses(self) -> dict[int, list[Any]]:
        if self._responses is None:
            instances = [instance for task in self._tasks for instance in task.instances]
            scored = [instance for instance in instances if instance.request_type != _GENERATION]
            generated = [instance for instance in instances if instance.request_type == _GENERATION]
            model = self._generation() if generated else None
            self._decodings = {
                id(instance): decoding_of(instance, self.tokenizer.eos_token, self._seed, model)
                for instance in generated
            }
            if model is not None and model.max_new_tokens is not None:
                self._say(
                    f"The model's generation config has max_new_tokens: {model.max_new_tokens}, which the harness' own "
                    "backend would use; here the tasks' max_gen_toks apply."
                )
            found = self._answer(self._pairs(scored), self._prompts(generated))
            self._responses, unfinished, start = {}, Counter[str](), 0
            for instance, count in self._requests:
                own = found[start : start + count]
                start += count
                self._responses[id(instance)] = self._respond(instance, own)
                if instance.request_type == _GENERATION:
                    unfinished[instance.task_name] += sum(map(self._lacks_think_end, map(_tokens_of, own)))
            for name, count in (+unfinished).items():
                self._say(
                    f"Task {name}: {count} texts have no --think-end-token, so the whole text counts as the answer. "
                    "Thinking may need more tokens (--gen-kwargs max_gen_toks=N), or ended at a stop string (until)."
                )
        return self._responses

    def _lacks_think_end(self, tokens: list[int]) -> bool:
        end = self._think_end
        if end is None:
            return False
        return end not in (tokens if isinstance(end, int) else self.tokenizer.decode(tokens, skip_special_tokens=True))

    def _prompts(self, instances: list[Instance]) -> Iterator[Prompt]:
        for instance in instances:
            decoding = self._decodings[id(instance)]
            context = self.tok_encode(text_argument(instance, 0))
            room = self.max_length - decoding.max_new_tokens
            if room < 1:
                problem = (
                    f"it asks for up to {decoding.max_new_tokens} new tokens (max_gen_toks), which leaves no room for "
                    f"a context in the {self.max_length} tokens that can be sent"
                )
            elif not context:
                problem = "a context has no tokens"
            elif self._strict and len(context) > room:
                problem = (
                    f"a context has {len(context)} tokens, more than the {room} that --max-length "
                    f"{self.max_length + 1} leaves beside the new ones, and --strict forbids cutting it"
                )
            else:
                self._require_known(instance, context)
                count = texts_asked_for(instance, decoding)
                self._requests.append((instance, count))
                yield from itertools.repeat((context, decoding), count)
                continue
            raise problem_of(instance, problem)

    def _pairs(self, instances: list[Instance]) -> Iterator[Pair]:
        for start in range(0, len(instances), _TOKENIZED_AT_ONCE):
            some = instances[start : start + _TOKENIZED_AT_ONCE]
            for instance in some:
                texts = [text_argument(instance, number) for number in range(len(instance.args))]
                if not any(texts):
                    self._check_empty(instance)
            whole = [instance for instance in some if instance.request_type != ROLLING]
            tokenized = iter(super().loglikelihood(whole, disable_tqdm=True))  # see _loglikelihood_tokens
            for instance in some:
                rolls = instance.request_type == ROLLING
                pairs = self._windows(instance) if rolls else [next(tokenized)]
                self._requests.append((instance, len(pairs)))
                for context, continuation in pairs:
                    self._check(instance, context, continuation)
                    yield context, continuation

    def _loglikelihood_tokens(self, requests: list[tuple[Any, list[int], list[int]]], **_: Any) -> list[Pair]:
        """Returns the harness' token ids of contexts and continuations; `_all_responses` answers them."""
        return [(context, continuation) for _, context, continuation in requests]

    def _windows(self, instance: Instance) -> list[Pair]:
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(instance.args[0]),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        pairs = [make_disjoint_window(window) for window in windows]
        if pairs and pairs[0][0] == pairs[0][1][:1]:
            begin = self.tokenizer.decode(self.prefix_token_id)
            self._say(
                f"Task {instance.task_name}: texts begin with {begin}. The harness adds another one, as with its own "
                "backend, and the text's own is predicted like any other token."
            )
        return pairs

    def _check_empty(self, instance: Instance) -> None:
        """Refuses a pair of empty texts, in which there is nothing to predict; an empty text is a notice."""
        if instance.request_type != ROLLING:
            raise problem_of(instance, "context and continuation are both empty")
        self._say(f"Task {instance.task_name}, document {document_of(instance)}: the text is empty.", "empty text")

    def _check(self, instance: Instance, context: list[int], continuation: list[int]) -> None:
        length = len(context) + len(continuation)
        if not context or not continuation:
            what = "context" if continuation else "continuation"
            problem = f"a {what} has no tokens"
        elif len(continuation) > self.max_length:
            problem = f"a continuation has {len(continuation)} tokens, more than the {self.max_length} that can be sent"
        elif self._strict and length > self.max_length + 1:
            problem = (
                f"context and continuation have {length} tokens, more than --max-length {self.max_length + 1}, and "
                "--strict forbids cutting them"
            )
        else:
            self._require_known(instance, [*context, *continuation])
            return
        raise problem_of(instance, problem)

    def _require_known(self, instance: Instance, tokens: list[int]) -> None:
        if max(tokens) >= self._vocab_size:
            raise problem_of(
                instance,
                f"the tokenizer gives the token id {max(tokens)}, but the model knows only {self._vocab_size} ids: it "
                "belongs to another model",
            )

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Id of the token that replaces an empty context."""
        begin = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if begin is None else begin)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Returns the token ids of a text; by default, special tokens are added unless it begins with one."""
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, verbose=False, **special))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Puts a conversation into the tokenizer's chat template, without system messages if it refuses them."""
        try:
            text = self._templated(chat_history, add_generation_prompt)
        except TemplateError as error:
            kept = [message for message in chat_history if message["role"] != "system"]
            if len(kept) == len(chat_history):
                raise template_fault(error) from error
            try:
                text = self._templated(kept, add_generation_prompt)
            except TemplateError:
                raise template_fault(error) from error
            self._say(
                f"The chat template refuses system messages ({one_line(error)}): descriptions of tasks are left out, "
                "as with the harness' own backend."
            )
        return text

    def _templated(self, chat_history: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """Without the start of an answer, the last message is one that the model continues (`gen_prefix`)."""
        return render_chat(
            self.tokenizer,
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **self._template_options,
        )


def _tokens_of(answer: np.void) -> list[int]:
    return list(answer["tokens"][: answer["length"]].tolist())
