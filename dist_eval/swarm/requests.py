"""Requests to a swarm: hidden states before the first block → those after the last one.

Petals' own client is made for training. This one is made for many forwards. `SwarmRequests` is the path of a batch,
from top to bottom, segment by segment: choose a server (`attempts.py`, by the speeds that `router.py` has measured),
wait for its turn (`gate.py`), send (`transport.py`, which judges the answer), and retry or go elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch

from dist_eval.base_model.config import max_request_tokens
from dist_eval.data.answers import RouteSegment
from dist_eval.errors import NoCacheError, RefusedError, SwarmError, one_line
from dist_eval.results.work import Traffic
from dist_eval.swarm.attempts import Attempts, Choice, NoServer, RoutePart, TooLarge
from dist_eval.swarm.directory import ServerDirectory
from dist_eval.swarm.failures import Failure, RequestDisplaced, classify, drop_traceback, may_have_room_later
from dist_eval.swarm.gate import STEPS, ConcurrencyLimit, Gate, RateLimiter
from dist_eval.swarm.router import Router
from dist_eval.swarm.routes import RouteRecord, Span
from dist_eval.swarm.servers import SwarmServers
from dist_eval.swarm.transport import Transport

# How often a server's round trip is measured, and the longest time that this takes
_ROUND_TRIPS, _ROUND_TRIP_SECONDS = 2, 2.0

# Seconds between two looks at the speeds that other ranks have measured
_LOOK_SECONDS = 0.05

Item = TypeVar("Item")
Result = TypeVar("Result")


class Request(NamedTuple):
    """A request to one server."""

    send: Callable[[float], Awaitable[Any]]  # called in its turn, with the seconds to wait for a message's answer
    work: int  # tokens times blocks


MakeRequest = Callable[[Span], Request]
"""Returns the request to a server, for the blocks that it should run."""


class SwarmRequests:
    """Sends hidden states through all blocks of a model.

    Args:
        directory: the list of servers.
        config: the model's `transformers` config.
        request_timeout: seconds to wait for a server's answer.
        max_retries: how often each part of a request is sent again, after its first attempt.
        compression: of the activations: "none" is exact, "float16" changes the result a little.
        router: chooses servers; by default one of its own.
        outage_timeout: seconds to wait for blocks that no reachable server holds.
        rejoin: called every few seconds while waiting for such servers.
        tokens_per_second: most tokens to send through the swarm in a second.

    Attributes:
        servers: those that may be asked.
        router: chooses servers, and keeps their statistics.
        rate_limiter: spaces batches.
        halved: requests that were too large for all servers, and were split in halves.
        timeout: seconds to wait for a server's answer.
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
    ) -> None:
        self.router = router or Router()
        self.halved = 0
        self.rate_limiter = RateLimiter(tokens_per_second)
        self.timeout, self._attempts = request_timeout, max_retries + 1
        self._config, self._compression = config, compression
        self.transport = Transport(directory, timeout=request_timeout, compression=compression)
        self.servers = SwarmServers(directory, config, self.transport, outage_timeout=outage_timeout, rejoin=rejoin)
        self.num_blocks = self.servers.num_blocks
        self._gates: dict[tuple[Any, bool], Gate] = {}
        self._look_at = -math.inf

    def start(self) -> None:
        """Waits for the first list of servers, and measures how long messages to them take.

        Raises:
            SwarmError: some block has no server, or none whose version of Petals computes the model.
        """
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        self.servers.start(self.timeout)
        RemoteExpertWorker.run_coroutine(self._measure_round_trips())

    def forward(
        self,
        hidden: torch.Tensor,
        prompts: torch.Tensor | None,
        avoided: Sequence[RouteSegment] = (),
        record: RouteRecord | None = None,
        rows: int | None = None,
    ) -> torch.Tensor:
        """Sends hidden states through all blocks. Thread-safe.

        Args:
            hidden: float tensor of shape [batch, length, hidden].
            prompts: deep prompts of shape [blocks, pre_seq_len, hidden], or None. They are serialized once: pass the
                same tensor each time.
            avoided: segments to avoid if there is another route.
            record: records the route.
            rows: most texts of a request: several requests are sent at a time. By default it is one.

        Returns:
            The last block's outputs, of the same shape and dtype.

        Raises:
            RefusedError: servers refused the request.
            ModelOutputError: servers answered with values that are not finite.
            OutageError: a block has had no reachable server for too long.
            SwarmError: a segment got no answer in all attempts.
        """
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        self.transport.use_prompts(prompts)
        return RemoteExpertWorker.run_coroutine(self._forward_rows(hidden, avoided, record, rows)).to(hidden)

    async def _forward_rows(
        self, hidden: torch.Tensor, avoided: Sequence[RouteSegment], record: RouteRecord | None, rows: int | None
    ) -> torch.Tensor:
        record = record or RouteRecord()
        answers = await for_all(parts_of(hidden, rows), lambda part: self._forward(part, avoided, record))
        return torch.cat(answers) if len(answers) > 1 else answers[0]

    async def _forward(
        self, hidden: torch.Tensor, avoided: Sequence[RouteSegment], record: RouteRecord
    ) -> torch.Tensor:
        await self.rate_limiter.wait(tokens_in(hidden))
        return await self._forward_from(0, hidden, avoided, record)

    async def _forward_from(
        self, block: int, hidden: torch.Tensor, avoided: Sequence[RouteSegment], record: RouteRecord
    ) -> torch.Tensor:
        while block < self.num_blocks:
            try:
                segment, hidden = await self.send(hidden, block, avoided)
            except TooLarge as error:
                halves = self.halves(hidden, error)
                return torch.cat([await self._forward_from(block, half, avoided, record) for half in halves])
            record.route.append(
                RouteSegment(str(segment.peer), segment.start, segment.end, segment.announced.precision)
            )
            block = segment.end
        return hidden

    async def send(
        self, hidden: torch.Tensor, block: int, avoided: Sequence[RouteSegment] = ()
    ) -> tuple[Span, torch.Tensor]:
        """Sends hidden states through the next segment of the route from a block on; see `send_with_retries`."""
        part = RoutePart(block, self.num_blocks, tokens_in(hidden), avoided, rows=len(hidden))
        return await self.send_with_retries(lambda segment: self._forward_request(segment, hidden), part)

    def _forward_request(self, segment: Span, hidden: torch.Tensor) -> Request:
        work = tokens_in(hidden) * (segment.end - segment.start)
        return Request(within(lambda: self.transport.send(segment, hidden)), work)

    async def send_with_retries(self, make_request: MakeRequest, part: RoutePart) -> tuple[Span, Any]:
        """Sends a request to one server after another until one has answered; returns the segment and its answer.

        Raises:
            TooLarge: servers accept smaller requests only.
            EvaluationError: see `forward`.
        """
        attempts = Attempts(self.router, part, self._attempts, self.timeout)
        online = self.servers.session_spans if part.in_session else self.servers.spans
        has_waited = False
        while True:
            try:
                choice = attempts.choose(online(), time.monotonic())
                try:
                    answer = await self._send_in_turn(make_request(choice.segment), choice)
                except Exception as error:  # any of the daemon, the connection or the server
                    drop_traceback(error)
                    delay = attempts.failed(choice, error, time.monotonic())
                    if classify(error) not in (Failure.DISPLACED, Failure.TOO_LARGE):
                        self.servers.refresh()
                    await asyncio.sleep(delay)
                else:
                    attempts.answered(choice, time.monotonic())
                    if has_waited:
                        self.servers.came_back()
                    return choice.segment, answer
            except NoServer as outage:
                self.servers.refresh()
                if not attempts.has_route(online(), time.monotonic()):
                    has_waited = True
                    await self.servers.wait(outage)

    async def _send_in_turn(self, request: Request, choice: Choice) -> Any:
        """Sends a request when its server can use it, and records how that went."""
        segment, server = choice.segment, self.router.stats(choice.segment.peer)
        server.announced, server.pacing.announced_seconds_per_work = segment.announced, segment.seconds_per_work
        gate = self._gate(segment.peer, is_for_steps=choice.has_cache)
        ticket = await gate.enter(request.work)
        sent_at = time.monotonic()
        try:
            answer = await request.send(choice.stall_timeout)
        except BaseException as error:
            now = time.monotonic()
            server.failed(now, classify(error))
            gate.failed(ticket, now)
            raise
        now = time.monotonic()
        server.answered(request.work, sent_at, now)
        gate.answered(ticket, now)
        self._choose_again()
        return answer

    def _look_again(self) -> None:
        """Does what answers would, while this rank has none: other ranks may have had some."""
        if time.monotonic() >= self._look_at:
            self._choose_again()

    def _choose_again(self) -> None:
        """Has requests that wait choose again, if servers are faster or slower than expected when they chose."""
        self._look_at = time.monotonic() + _LOOK_SECONDS
        if self.router.speeds_changed(self.servers.spans()):
            for (_, is_for_steps), waiting in self._gates.items():
                if not is_for_steps:  # steps stay with the server that has their cache
                    waiting.displace("servers are faster or slower than expected")

    def _gate(self, peer: Any, *, is_for_steps: bool) -> Gate:
        key = peer, is_for_steps
        if key not in self._gates:
            pacing = self.router.stats(peer).pacing
            admission = ConcurrencyLimit(STEPS, pacing) if is_for_steps else pacing
            self._gates[key] = Gate(admission, self._look_again)
        return self._gates[key]

    def halves(self, tensor: torch.Tensor, error: TooLarge) -> Sequence[torch.Tensor]:
        """Splits a request into two that a server may accept.

        Raises:
            RefusedError: it is a single text.
        """
        if len(tensor) == 1:
            refused = RefusedError(
                f"a text of {tensor.shape[1]} tokens, prompts included, is more than the servers accept "
                f"({error}): give a lower --max-length"
            )
            # what servers take by default is refused by few: others may be back later
            refused.transient = tensor.shape[1] <= max_request_tokens(self._config)
            raise refused from error
        self.halved += 1
        return tensor.tensor_split(2)

    def ask(self, segment: Span, hidden: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
        """Sends hidden states through blocks of a given server.

        Raises:
            SwarmError: see `answer_of`.
        """
        self.transport.use_prompts(prompts)
        return self.answer_of(segment, self._forward_request(segment, hidden))

    def answer_of(self, segment: Span, request: Request) -> torch.Tensor:
        """Sends a request to a given server.

        Raises:
            SwarmError: there is no usable answer; the message names the server. A `NoCacheError` if it has no room for
                a session.
        """
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        choice = Choice(segment, self.timeout, spans=(), at=time.monotonic())

        async def send() -> torch.Tensor:
            while True:
                with contextlib.suppress(RequestDisplaced):  # by the failure of another request
                    return await self._send_in_turn(request, choice)

        try:
            return RemoteExpertWorker.run_coroutine(send())
        except Exception as error:  # any of the daemon, the connection or the server
            has_no_room = classify(error) is Failure.NO_CACHE
            failed = (NoCacheError if has_no_room else SwarmError)(
                f"blocks {segment.start}:{segment.end} (peer {segment.peer}): {one_line(error)}"
            )
            failed.transient = not has_no_room or may_have_room_later(error)
            raise failed from error

    async def _measure_round_trips(self) -> None:
        """Measures how long messages to servers take; those that take long to answer are left out."""

        async def measure(span: Span) -> None:
            with contextlib.suppress(Exception):  # any of the daemon, the connection or the server
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
            round_trips=sum(server.requests for server in self.router.servers.values()),
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


def parts_of(hidden: torch.Tensor, rows: int | None) -> Sequence[torch.Tensor]:
    """Splits a batch into requests of so many texts at most; by default it is one."""
    return hidden.split(rows or max(1, len(hidden)))


async def for_all(items: Sequence[Item], call: Callable[[Item], Awaitable[Result]]) -> list[Result]:
    """Calls a function with all items at a time; returns the results, once all calls have ended."""
    answers = await asyncio.gather(*map(call, items), return_exceptions=True)  # none goes on alone
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast(list[Result], answers)


def within(send: Callable[[], Awaitable[Any]]) -> Callable[[float], Awaitable[Any]]:
    """Returns what sends a single message, and waits for its answer for so many seconds."""
    return lambda seconds: asyncio.wait_for(send(), seconds)


def tokens_in(hidden: torch.Tensor) -> int:
    """Returns the tokens in hidden states of shape [batch, length, hidden], counting padding and prompts."""
    return hidden.shape[0] * hidden.shape[1]
