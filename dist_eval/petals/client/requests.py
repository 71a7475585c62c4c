"""Requests to the servers of a swarm.

Petals' own client is made for training, this one for many forwards. `SwarmRequests` chooses a server, or a chain of
servers that pass the request on (`attempts.py`, by the speeds that `router.py` has measured), waits for its turn
(`turns.py`), sends (`transport.py`), and retries or goes elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import torch

from dist_eval.errors import NoCacheError, RefusedError, SwarmError, one_line
from dist_eval.petals.base_model.config import max_request_tokens
from dist_eval.petals.client import event_loop
from dist_eval.petals.client.admission import RateLimiter
from dist_eval.petals.client.attempts import Attempts, Choice, NoServer, RoutePart, TooLarge
from dist_eval.petals.client.deep_prompts import DeepPrompts
from dist_eval.petals.client.directory import ServerDirectory
from dist_eval.petals.client.failures import Failure, classify, drop_traceback, may_have_room_later
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.records import Traffic
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.servers import SwarmServers
from dist_eval.petals.client.transport import ChainOutputs, Transport
from dist_eval.petals.client.turns import Request, Turns
from dist_eval.process.memory import keep_freed_memory

# How often a server's round trip is measured, and the longest time for it
_ROUND_TRIPS, _ROUND_TRIP_SECONDS = 2, 2.0


MakeRequest = Callable[[Choice], Request]
"""Returns the request to a server or chain, for the blocks that it should run."""

Item = TypeVar("Item")
Result = TypeVar("Result")

Halved = TypeVar("Halved", torch.Tensor, Inputs)


class SwarmRequests:
    """Sends requests to the servers of a model.

    Args:
        directory: the list of servers.
        config: the model's `transformers` config.
        request_timeout: seconds to wait for a server's answer.
        max_retries: how often each part of a request is repeated after its first attempt.
        compression: compression of activations: "none" is exact, "float16" changes the result a little.
        router: chooses servers; by default one of its own.
        outage_timeout: seconds to wait for blocks that no reachable server holds.
        rejoin: called every few seconds while waiting for such blocks.
        tokens_per_second: most tokens to send through the swarm in a second.
        chains: whether servers may pass requests on to each other, which changes no bit of a result.
    """

    def __init__(
        self,
        directory: ServerDirectory,
        config: Any,
        *,
        request_timeout: float,
        max_retries: int,
        compression: str = "none",
        router: Router | None = None,
        outage_timeout: float = 120.0,
        rejoin: Callable[[], None] = lambda: None,
        tokens_per_second: float = math.inf,
        chains: bool = True,
    ) -> None:
        self.router = router or Router()
        self.halved = 0  # requests that were halved because they were too large for all servers
        self.rate_limiter = RateLimiter(tokens_per_second)
        self.timeout, self._attempts = request_timeout, max_retries + 1
        self._config, self._compression = config, compression
        self.transport = Transport(directory, timeout=request_timeout, compression=compression)
        self.servers = SwarmServers(directory, config, self.transport, outage_timeout=outage_timeout, rejoin=rejoin)
        self.num_blocks = self.servers.num_blocks
        # a chain would not compress the activations between its servers, which would change results
        self.chains = chains and compression == "none"
        self._turns = Turns(self.router)

    def start(self) -> None:
        """Waits for the first list of servers, and measures their round trips."""
        keep_freed_memory()
        self.servers.start(self.timeout)
        event_loop.run(self._measure_round_trips())

    def close(self) -> None:
        """Closes idle streams, and stops updating the list of servers."""
        self.transport.streams.close()
        self.servers.close()

    async def send(self, hidden: torch.Tensor, block: int, deep: DeepPrompts) -> tuple[Span, torch.Tensor]:
        """Sends hidden states from a block on to a single server; see `send_with_retries`."""
        inputs = Inputs.of(hidden)
        part = RoutePart(block, self.num_blocks, inputs.size, rows=inputs.batch)
        choice, outputs = await self.send_with_retries(
            lambda choice: self.segment_request(choice.segment, inputs, deep), part
        )
        return choice.segment, outputs

    def segment_request(self, segment: Span, inputs: Inputs, deep: DeepPrompts) -> Request:
        """Returns the request to a single server."""

        async def send() -> torch.Tensor:
            return await self.transport.send(segment, await asyncio.to_thread(inputs.hidden), deep)

        return Request(within(send), inputs.size * (segment.end - segment.start))

    async def send_with_retries(self, make_request: MakeRequest, part: RoutePart) -> tuple[Choice, Any]:
        """Sends a request to one server after another until one answers; returns the server and its answer.

        Raises `TooLarge` if servers accept only smaller requests. For other errors, see `forward.forward`.
        """
        attempts = Attempts(self.router, part, self._attempts, self.timeout)
        online = self.servers.session_spans if part.in_session else self.servers.spans
        has_waited = False
        while True:
            try:
                turn = await self._turns.wait(
                    part.line, lambda waiting: attempts.choices(online(), time.monotonic(), waiting), make_request
                )
                choice = turn.choice
                try:
                    answer = await self._turns.send(turn)
                except Exception as error:  # any error of the daemon, the connection or the server
                    drop_traceback(error)
                    delay = attempts.failed(choice, error, time.monotonic())
                    if classify(error) not in (Failure.CHOOSE_AGAIN, Failure.TOO_LARGE):
                        self.servers.refresh()
                    await asyncio.sleep(delay)
                else:
                    found = answer.answer if isinstance(answer, ChainOutputs) else None
                    attempts.answered(choice, time.monotonic(), found)
                    if found is not None and choice.chain[-1].end != found.end:
                        self.servers.refresh()
                    if has_waited:
                        self.servers.came_back()
                    return choice, answer
            except NoServer as outage:
                self.servers.refresh()
                if not attempts.has_route(online(), time.monotonic()):
                    has_waited = True
                    await self.servers.wait(outage)

    def halves(self, given: Halved, error: TooLarge) -> Sequence[Halved]:
        """Halves a request so that a server may accept it; raises `RefusedError` if it has only one text."""
        batch, length = given.shape[:2]
        if batch == 1:
            refused = RefusedError(
                f"a text of {length} tokens, prompts included, is more than the servers accept "
                f"({error}): give a lower --max-length"
            )
            # few servers refuse what the default limits allow: others may come back later
            refused.transient = length <= max_request_tokens(self._config)
            raise refused from error
        self.halved += 1
        return given.tensor_split(2)

    def ask(self, segment: Span, hidden: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
        """Sends hidden states through blocks of a given server; see `answer_of`."""
        request = self.segment_request(segment, Inputs.of(hidden), self.transport.prompts.of(prompts))
        return self.answer_of(segment, request)

    def answer_of(self, segment: Span, request: Request) -> torch.Tensor:
        """Sends a request to a given server.

        Raises `SwarmError` if there is no usable answer, a `NoCacheError` if the server has no room for a session; the
        message names the server.
        """
        choice = Choice(segment, self.timeout, spans=(), at=time.monotonic())

        async def send() -> torch.Tensor:
            turn = await self._turns.wait(segment.peer, lambda _: iter([choice]), lambda _: request)
            return await self._turns.send(turn)

        try:
            answer: torch.Tensor = event_loop.run(send())
            return answer
        except Exception as error:  # any error of the daemon, the connection or the server
            has_no_room = classify(error) is Failure.NO_CACHE
            failed = (NoCacheError if has_no_room else SwarmError)(
                f"blocks {segment.start}:{segment.end} (peer {segment.peer}): {one_line(error)}"
            )
            failed.transient = not has_no_room or may_have_room_later(error)
            raise failed from error

    async def _measure_round_trips(self) -> None:
        """Measures round trips to servers; slow ones are left out."""

        async def measure(span: Span) -> None:
            with contextlib.suppress(Exception):  # any error of the daemon, the connection or the server
                await self.transport.free_cache(span)  # opens the connection
                for _ in range(_ROUND_TRIPS):
                    sent_at = time.monotonic()
                    await self.transport.free_cache(span)
                    self.router.stats(span.peer).pacing.measured_round_trip(time.monotonic() - sent_at)

        tasks = [asyncio.ensure_future(measure(span)) for span in self.servers.spans()]
        await asyncio.wait(tasks, timeout=_ROUND_TRIP_SECONDS)
        for task in tasks:
            task.cancel()

    def traffic(self) -> Traffic:
        """Returns the traffic so far, for the section `ranks` of `results.json`."""
        return Traffic(
            compression=self._compression,
            round_trips=self._turns.answers,
            retries=self.router.retries,
            halved=self.halved,
            bytes_sent=self.transport.bytes_sent,
            bytes_received=self.transport.bytes_received,
            servers=[
                server.traffic(str(peer))
                for peer, server in self.router.servers.items()
                if server.requests or server.failures
            ],
        )


async def for_all(items: Sequence[Item], call: Callable[[Item], Awaitable[Result]]) -> list[Result]:
    """Calls a function with all items concurrently; returns or raises only when all calls have ended."""
    answers = await asyncio.gather(*map(call, items), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast(list[Result], answers)


def within(send: Callable[[], Awaitable[Any]]) -> Callable[[float], Awaitable[Any]]:
    """Returns a function that sends a single message and waits for its answer, given the seconds to wait."""
    return lambda seconds: asyncio.wait_for(send(), seconds)


def tokens_in(hidden: torch.Tensor) -> int:
    """Counts the tokens of hidden states of shape [batch, length, hidden], including padding and prompts."""
    return hidden.shape[0] * hidden.shape[1]
