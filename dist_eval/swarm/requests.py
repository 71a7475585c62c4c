"""Requests to a swarm: hidden states before the first block → those after the last one.

Petals' own client is made for training. This one is made for many forwards: routes by measured speed (`router.py`),
requests in their turn (`dispatch.py`) and small (`transport.py`), and a bounded number of retries (`attempts.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import torch

from dist_eval.data.answers import RouteSegment
from dist_eval.distributed.timeline import Timeline
from dist_eval.errors import RefusedError, SwarmError, one_line
from dist_eval.results.work import Traffic
from dist_eval.swarm.attempts import (
    AskAnother,
    Attempts,
    Decision,
    GiveUp,
    Retry,
    RoutePart,
    Send,
    Skip,
    Split,
    TooLarge,
    WaitForServers,
)
from dist_eval.swarm.directory import ServerDirectory
from dist_eval.swarm.dispatch import Dispatcher
from dist_eval.swarm.failures import drop_traceback
from dist_eval.swarm.families import max_request_tokens
from dist_eval.swarm.gate import TurnedAway
from dist_eval.swarm.outage import Outage
from dist_eval.swarm.p2p_daemon import BETWEEN_CONTACTS, CONTACT_SECONDS, PeerUnreachable
from dist_eval.swarm.petals_version import serves, versions_needed
from dist_eval.swarm.rate_limiter import RateLimiter
from dist_eval.swarm.router import Router, Routing, Span
from dist_eval.swarm.transport import Transport

# Time until a request that was turned away chooses again. If a lost cache caused it, the failure is recorded then.
_ASIDE_SECONDS = 0.01

RequestFactory = Callable[[Span], tuple[Coroutine[Any, Any, Any], int]]
"""Builds the request for a server and its blocks; also returns its work, in tokens times blocks."""


class SwarmRequests:
    """Sends hidden states through all blocks of a model.

    Args:
        directory: the list of servers.
        config: the model's `transformers` config.
        request_timeout: seconds to wait for a server's answer.
        max_retries: attempts for each part of a request, counting the first one.
        compression: of the activations (see `Transport`).
        router: chooses servers; by default one of its own.
        outage_timeout: seconds to wait for blocks that no reachable server holds.
        rejoin: called every few seconds while waiting for such servers.
        tokens_per_second: most tokens to send through the swarm in a second.

    Attributes:
        router: chooses servers, and keeps their statistics.
        outage: waits for servers.
        rate_limiter: spaces batches.
        retries: requests that had to be repeated.
        halved: requests that were too large for all servers, and were split in halves.
        excluded: peer ids of servers that are no longer used.
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
        self.retries = self.halved = 0
        self.excluded: set[str] = set()
        self.outage, self.rate_limiter = Outage(outage_timeout, rejoin), RateLimiter(tokens_per_second)
        self._dispatcher = Dispatcher(self.router)
        self._directory, self._config, self._attempts = directory, config, max_retries
        self.timeout, self._compression = request_timeout, compression
        self.transport = Transport(directory, timeout=request_timeout, compression=compression)

    def start(self) -> None:
        """Starts the thread that updates the list of servers, and waits for the first list.

        Raises:
            SwarmError: some block has no server, or none whose version of Petals computes the model.
        """
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        self._directory.start(self.timeout)
        spans = self.spans()
        if not _cover(self._directory.spans(), self.num_blocks):
            raise SwarmError(f"The swarm lost a server of {self._directory.dht_prefix} just now: start it again.")
        if not _cover(spans, self.num_blocks):
            raise SwarmError(
                f"Some blocks of {self._directory.dht_prefix} are held only by servers whose version of Petals would "
                f"fail or compute something else: this model needs servers with {versions_needed(self._config)}."
            )
        RemoteExpertWorker.run_coroutine(self._dispatcher.measure_round_trips(spans, self.transport.free_cache))

    def forward(
        self, hidden: torch.Tensor, prompts: torch.Tensor | None, routing: Routing | None = None
    ) -> torch.Tensor:
        """Sends hidden states through all blocks. Thread-safe.

        Args:
            hidden: float tensor of shape [batch, length, hidden].
            prompts: deep prompts of shape [blocks, pre_seq_len, hidden], or None. They are serialized once: pass the
                same tensor each time.
            routing: records the route, and names servers to avoid.

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
        return RemoteExpertWorker.run_coroutine(self._forward(hidden, routing or Routing())).to(hidden)

    def ask(self, segment: Span, hidden: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
        """Sends hidden states through blocks of a given server.

        Raises:
            SwarmError: there is no usable answer; the message names the server.
        """
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        self.transport.use_prompts(prompts)
        work = tokens_in(hidden) * (segment.end - segment.start)

        async def send() -> torch.Tensor:
            while True:
                with contextlib.suppress(TurnedAway):  # by the failure of another request
                    request = self.transport.send(segment, hidden)
                    return await self._dispatcher.send(request, segment, work, self.timeout)

        try:
            return RemoteExpertWorker.run_coroutine(send())
        except Exception as error:  # any of the daemon, the connection or the server
            raise SwarmError(
                f"blocks {segment.start}:{segment.end} (peer {segment.peer}): {one_line(error)}"
            ) from error

    def free_cache(self) -> dict[Span, int]:
        """Asks all servers how much attention cache they have left; after a failed contact again, for a few seconds.

        Returns:
            Tokens of a text times blocks; 0 for a server that does not answer, or has no sessions.
        """
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        async def ask(spans: Sequence[Span]) -> list[int | BaseException]:
            return await asyncio.gather(*map(self.transport.free_cache, spans), return_exceptions=True)

        spans, give_up = self.spans(), time.monotonic() + CONTACT_SECONDS
        found = dict[Span, int]()
        while missing := [span for span in spans if span not in found]:
            answers = zip(missing, RemoteExpertWorker.run_coroutine(ask(missing)), strict=True)
            found.update((span, left) for span, left in answers if isinstance(left, int))
            if time.monotonic() > give_up:
                break
            if len(found) < len(spans):
                time.sleep(BETWEEN_CONTACTS)
        return {span: found.get(span, 0) for span in spans}

    @property
    def num_blocks(self) -> int:
        """Blocks of the model."""
        return self._directory.num_blocks

    def spans(self) -> Sequence[Span]:
        """Returns the blocks that are online, without those of excluded servers and of unfit versions of Petals."""
        return [
            span
            for span in self._directory.spans()
            if serves(span.announced.version, self._config) and str(span.peer) not in self.excluded
        ]

    def session_spans(self) -> Sequence[Span]:
        """Returns those of them whose servers have sessions, as far as they were asked."""
        return list(filter(self.transport.may_have_sessions, self.spans()))

    @property
    def has_sessions(self) -> bool:
        """Whether servers with sessions hold all blocks."""
        return _cover(self.session_spans(), self.num_blocks)

    @property
    def connection(self) -> Any:
        """The `hivemind.P2P` to the servers; None before `start`."""
        return self._directory.p2p

    def close(self) -> None:
        """Stops keeping the list of servers up to date."""
        self._directory.close()

    def traffic(self) -> Traffic:
        """Returns the traffic so far, for the section `ranks` of `results.json`."""
        return Traffic(
            compression=self._compression,
            round_trips=sum(server.requests for server in self.router.servers.values()),
            retries=self.retries,
            halved=self.halved,
            bytes_sent=self.transport.bytes_sent,
            bytes_received=self.transport.bytes_received,
            servers=[
                server.traffic(str(peer))
                for peer, server in self.router.servers.items()
                if server.requests or server.failures
            ],
        )

    def timelines(self) -> dict[str, Timeline]:
        """Returns the requests of each server over time."""
        return {str(peer): server.timeline for peer, server in self.router.servers.items()}

    async def _forward(self, hidden: torch.Tensor, routing: Routing) -> torch.Tensor:
        await self.rate_limiter.wait(tokens_in(hidden))
        return await self._forward_from(0, hidden, routing)

    async def _forward_from(self, block: int, hidden: torch.Tensor, routing: Routing) -> torch.Tensor:
        while block < self.num_blocks:
            try:
                segment, hidden = await self.send(hidden, block, routing.avoided)
            except TooLarge as error:
                halves = self.halves(hidden, error)
                return torch.cat([await self._forward_from(block, half, routing) for half in halves])
            routing.route.append(
                RouteSegment(str(segment.peer), segment.start, segment.end, segment.announced.precision)
            )
            block = segment.end
        return hidden

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

    async def send(
        self, hidden: torch.Tensor, block: int, avoided: Sequence[RouteSegment] = ()
    ) -> tuple[Span, torch.Tensor]:
        """Sends hidden states through the next segment of the route from a block to the last one.

        Returns:
            The segment, and the outputs of its last block.

        Raises:
            TooLarge: servers accept smaller requests only.
            EvaluationError: see `forward`.
        """
        tokens = tokens_in(hidden)
        return await self.send_with_retries(
            lambda segment: (self.transport.send(segment, hidden), tokens * (segment.end - segment.start)),
            RoutePart(block, self.num_blocks, tokens, avoided, rows=len(hidden)),
        )

    async def send_with_retries(self, make_request: RequestFactory, part: RoutePart) -> tuple[Span, Any]:
        """Sends a request to one server after another until one has answered.

        Args:
            make_request: builds the request for a server and its blocks, and returns its work.
            part: the blocks that are to answer, from the first one on.

        Returns:
            The segment that answered, and its answer.

        Raises:
            TooLarge: servers accept smaller requests only.
            EvaluationError: see `forward`.
        """
        attempts = Attempts(self.router, part, self._attempts, self.timeout)
        online = self.session_spans if part.in_session else self.spans
        while True:
            error: Exception | None = None
            decision: Decision = attempts.next(online(), time.monotonic())
            if isinstance(decision, Send):
                try:
                    request, work = make_request(decision.segment)
                    answer = await self._dispatcher.send(
                        request, decision.segment, work, decision.stall_timeout, is_step=decision.has_cache
                    )
                    attempts.answered(decision, time.monotonic())
                    return decision.segment, answer
                except Exception as reason:  # any of the daemon, the connection or the server
                    drop_traceback(reason)
                    if isinstance(reason, TurnedAway):
                        await asyncio.sleep(_ASIDE_SECONDS)
                        continue
                    error = reason
                    decision = attempts.after(decision, reason, time.monotonic())
            if isinstance(decision, AskAnother):
                continue
            self._require_node()
            if isinstance(decision, Split | Skip):
                raise decision.error from error
            self.retries += error is not None and not isinstance(error, PeerUnreachable)
            self._directory.update()  # servers that left are dropped from the list, new ones are added
            if isinstance(decision, GiveUp):
                for peer in decision.exonerated:
                    self.router.stats(peer).retract_wrong_answer()
                raise decision.error from error
            if isinstance(decision, Retry):
                await asyncio.sleep(decision.delay)
            elif not attempts.has_route(online(), time.monotonic()):
                await self._wait_for_servers(decision)

    def _require_node(self) -> None:
        """Checks that this process' DHT node is alive; without it all requests would time out one by one."""
        node = self._directory.dht
        if not node.is_alive():
            raise SwarmError(
                f"the hivemind node of this rank (process {node.pid}) was ended from outside, status {node.exitcode}: "
                "if the host ran out of memory, start fewer ranks on it"
            )

    async def _wait_for_servers(self, outage: WaitForServers) -> None:
        why = outage.why
        if self.excluded:
            why += f" (not counting {', '.join(sorted(self.excluded))}, which an audit found faulty)"
        await self.outage.wait(f"{outage.what}: {why}", outage.since)


def _cover(spans: Sequence[Span], num_blocks: int) -> bool:
    return all(any(span.start <= block < span.end for span in spans) for block in range(num_blocks))


def tokens_in(hidden: torch.Tensor) -> int:
    """Returns the tokens in hidden states of shape [batch, length, hidden], counting padding and prompts."""
    return hidden.shape[0] * hidden.shape[1]
