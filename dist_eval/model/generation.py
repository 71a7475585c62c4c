"""Base model + output embedding → prompts to generated texts.

The rows of a batch are decoded in lock step, without padding or mask: the first step feeds as many tokens as the
shortest prompt has, and each later step one token per row. A row still within its prompt gets the prompt's next token;
other rows get the token just generated. So each row sees exactly its own prompt and text, regardless of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from dist_eval.data.answers import AnswerColumns, column_names, generation_columns
from dist_eval.data.generation import StopStrings
from dist_eval.inference.models import SendOptions
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.generation_config import GenerationSettings, Process, logits_process
from dist_eval.model.language_model import LanguageModel
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.client.session_room import CacheSpace, with_room
from dist_eval.results.inputs import Decoding

_OF_PROMPT = 3  # numbers for each prompt (see `TextSource.padded`); a continuation has two


class GeneratedTexts(NamedTuple):
    """Generated texts, and the states that they were generated from."""

    answer: dict[str, torch.Tensor]  # see `Generator`
    sent: torch.Tensor  # prompts and texts, int64 of shape [batch, n], with 0 after the end of each
    lengths: torch.Tensor  # number of tokens sent of each, int64 of shape [batch]
    states: torch.Tensor  # outputs of the last block that each new token was chosen from, of shape [tokens, hidden]
    places: tuple[torch.Tensor, torch.Tensor]  # row and column in `sent` of each state


class Generator(ModelOnBackbone):
    """A language model that continues prompts, and scores given continuations.

    `decodings` are all ways to generate texts that a batch may ask for, and `end_tokens` the ids of the tokens that end
    a text (see `end_tokens_of`). Batches may take `room` tokens of servers' caches at a time; one batch is always
    admitted. `columns` are those of the answers, by default only of texts; columns of the other kind are 0.
    """

    def __init__(
        self,
        model: LanguageModel,
        decodings: Sequence[Decoding],
        tokenizer: Any,
        end_tokens: Sequence[int],
        room: float = 0,
        columns: AnswerColumns | None = None,
    ) -> None:
        longest = max(decoding.max_new_tokens for decoding in decodings)
        super().__init__(model.backbone, model.output.hidden_size, columns or generation_columns(longest))
        self._model, self._output, self._decodings = model, model.output, decodings
        self._output.hold_in_memory()
        self._stops = [StopStrings(decoding.stop, tokenizer) for decoding in decodings]
        self._end_tokens = torch.tensor(sorted(end_tokens), dtype=torch.int64)
        self._room = CacheSpace(lambda: room)

    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        """See `generate` and `LanguageModel`; texts ignore `options`, because a session cannot change its route."""
        if lengths.shape[1] == _OF_PROMPT:
            return self.generate(input_ids, lengths, record).answer
        return self._all_columns(self._model.answer(input_ids, lengths, options, record), lengths)

    def _all_columns(self, found: dict[str, torch.Tensor], lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        empty = np.zeros(len(lengths), dtype=self.columns)
        return {name: found.get(name, torch.from_numpy(empty[name].copy())) for name in column_names(self.columns)}

    @torch.no_grad()
    def generate(self, input_ids: torch.Tensor, lengths: torch.Tensor, record: RouteRecord) -> GeneratedTexts:
        """Generates a text after each prompt.

        `lengths` has the number of tokens of each prompt, the number of its decoding (the same for all), and its
        position in the dataset. `tokens` of the answer include the one that ended each text, and 0 after it.
        """
        number = int(lengths[0, 1])
        decoding, stops = self._decodings[number], self._stops[number]
        draws = Draws(decoding.seed, lengths[:, 2].tolist()) if decoding.temperature else None
        prompts = (row[None, :start] for row, start in zip(input_ids, lengths[:, 0].tolist(), strict=True))
        processes = [logits_process(decoding, prompt) for prompt in prompts]
        starts = lengths[:, 0]
        tokens = torch.nn.functional.pad(input_ids, (0, decoding.max_new_tokens))
        ends = torch.zeros_like(starts)  # one past the last token of each text that is complete
        position, rows = 0, len(tokens)
        longest = int(starts.max()) + decoding.max_new_tokens - 1  # the last token is not sent
        servers = RouteRecord()
        states, places = list[torch.Tensor](), list[tuple[int, int]]()
        with (
            self._room.taken(rows * longest),
            closing(self.backbone.session(rows, longest, self.prompts, rolls_back=False)) as session,
        ):
            while (open_rows := (ends == 0).nonzero().squeeze(1)).numel():
                # until the first text begins or continues
                upto = max(position + 1, int(starts[open_rows].min()))
                servers = RouteRecord()
                generating = open_rows[starts[open_rows] <= upto]
                last = (generating + 1) * (upto - position) - 1
                step = partial(session.step, tokens[:, position:upto], position, servers, last)
                states.append(with_room(step))
                position = upto
                places += [(row, position - 1) for row in generating.tolist()]
                normed = self.backbone.final_norm(states[-1])
                found = self._chosen(normed, decoding, draws, generating.tolist(), processes, tokens[:, :position])
                tokens[generating, position] = found
                for row, is_end in zip(generating.tolist(), torch.isin(found, self._end_tokens).tolist(), strict=True):
                    text = tokens[row, starts[row] : position + 1]
                    if is_end or len(text) == decoding.max_new_tokens or stops.end(text.tolist()):
                        ends[row] = position + 1
        record.route.extend(servers.route)  # each step records the servers of all steps before
        sizes = ends - starts
        answer = torch.zeros(rows, int(self.columns["tokens"].shape[0]), dtype=torch.int32)
        for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            answer[row, :size] = tokens[row, start : start + size]
        sent = tokens[:, :position].where(torch.arange(position) < ends[:, None], 0)
        rows_and_columns = torch.tensor(places).T
        return GeneratedTexts(
            self._all_columns({"tokens": answer, "length": sizes.to(torch.int32)}, lengths),
            sent,
            ends.clamp(max=position),
            torch.cat(states),
            (rows_and_columns[0], rows_and_columns[1]),
        )

    def _chosen(
        self,
        states: torch.Tensor,
        decoding: Decoding,
        draws: Draws | None,
        rows: list[int],
        processes: Sequence[Process | None],
        tokens: torch.Tensor,
    ) -> torch.Tensor:
        """Chooses the next token of some rows, given all tokens so far, of shape [batch, n]."""
        if not decoding.temperature and not decoding.settings:
            return self._output.argmax_tokens(states)
        logits = self._output.logits(states)
        if decoding.settings:
            own = zip(rows, logits.cpu().split(1), strict=True)
            logits = torch.cat(
                [process(tokens[row, None], of_row) for row, of_row in own if (process := processes[row]) is not None]
            )
        if draws is None:
            return logits.argmax(dim=1)
        return draws.tokens(token_probabilities(logits, decoding), rows).cpu()


def end_tokens_of(model: str, tokenizer: Any) -> list[int]:
    """Returns the ids of the tokens that end a text, from a model's generation config and its tokenizer."""
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return sorted({*GenerationSettings(model).end_tokens, *own})


def token_probabilities(logits: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """Computes the distribution that tokens are drawn from.

    Temperature, top k and top p apply in this order, as in `transformers`. Top k keeps all tokens that tie at its
    limit. Top p (nucleus sampling) keeps the fewest tokens, likeliest first, whose probabilities add up to it; source:
    Holtzman et al. (2020), "The curious case of neural text degeneration", section 3.1.
    """
    scaled = logits.to(torch.float64) / decoding.temperature
    if 0 < decoding.top_k < scaled.shape[1]:
        limit = scaled.topk(decoding.top_k, dim=1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < limit, -torch.inf)
    probabilities = scaled.softmax(dim=1)
    if decoding.top_p < 1.0:
        sorted_ones, order = probabilities.sort(dim=1, descending=True, stable=True)
        before = sorted_ones.cumsum(dim=1) - sorted_ones
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= decoding.top_p)
        probabilities = probabilities.masked_fill(dropped, 0.0)
        probabilities = probabilities / probabilities.sum(dim=1, keepdim=True)
    return probabilities


class Draws:
    """Random numbers for texts, each with its own generator.

    So the draws for a text depend on the seed and its row, not on its batch or rank, or on the selection of rows.
    """

    def __init__(self, seed: int, rows: list[int]) -> None:
        self._generators = [np.random.default_rng([seed, row]) for row in rows]

    def tokens(self, probabilities: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Draws one token for some of the texts, from probabilities of shape [n, vocabulary]."""
        sums = probabilities.cumsum(dim=1)
        uniform = torch.tensor([[self._generators[row].random()] for row in rows], dtype=torch.float64)
        found = torch.searchsorted(sums, uniform.to(sums) * sums[:, -1:], right=True).squeeze(1)
        # a draw that rounding moved beyond the end is the last token that can be drawn
        last = probabilities.shape[1] - 1 - probabilities.flip(1).gt(0).int().argmax(dim=1)
        return torch.minimum(found, last)
