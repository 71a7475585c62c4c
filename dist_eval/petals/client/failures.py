"""Classifies failed requests, to decide whether to try another server, wait, or give up. Does no I/O.

Servers report errors as text; all other errors come from the transport. The texts are those of Petals 2.2.0
(`petals.server.task_pool`, `petals.server.handler`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from enum import Enum

_TOO_LARGE = ("greater than max_batch_size", "Message size exceeds", "message too large", "too large")
_NO_CACHE = ("Could not allocate", "attention cache is full", "Cannot allocate KV cache")
_TOO_LONG = "Cannot allocate KV cache"  # the server accepts only shorter sessions
_NEVER_ROOM = ("max cache size", _TOO_LONG)  # not even without other sessions
_BUSY = ("TimeoutError", "CancelledError", "deadline exceeded", "busy: ")
LACKS_PROMPTS = "the deep prompts of this request are not here any more"
"""The answer of our servers to digests of prompts that they do not have."""

_DAEMON_ERRORS = ("P2PDaemonError", "ControlFailure", "DispatchFailure")


class Failure(Enum):
    """Kinds of failed requests."""

    TOO_LARGE = "the server accepts smaller requests only"
    NO_CACHE = "the server has no room for an attention cache"
    REFUSED = "the server answered with an error, and would do so again"
    WRONG = "the server's answer cannot be right"
    NO_ANSWER = "the server did not answer in time, or the transport failed"
    UNREACHABLE = "the server cannot be reached"
    NOT_LISTENING = "nothing listens at the server's address, so the request was not sent"
    CHOOSE_AGAIN = "the request was not computed, because the caches of its session changed"


class WrongAnswer(Exception):
    """A server's answer has the wrong shape, or is not finite."""


class PeerUnreachable(ConnectionError):
    """Nothing listens at a peer's address, so the daemon was not made to dial it."""


class ChooseAgain(Exception):
    """A request was not computed, because the caches of its session changed; it may choose servers again."""


def classify(error: BaseException) -> Failure:
    """Returns the kind of failure that an error indicates."""
    text, name = str(error), type(error).__name__
    if isinstance(error, WrongAnswer):
        return Failure.WRONG
    if isinstance(error, PeerUnreachable):
        return Failure.NOT_LISTENING
    if isinstance(error, ChooseAgain):
        return Failure.CHOOSE_AGAIN
    if any(words in text for words in _TOO_LARGE):
        return Failure.TOO_LARGE
    if any(words in text for words in _NO_CACHE):
        return Failure.NO_CACHE
    if isinstance(error, (asyncio.TimeoutError, TimeoutError, concurrent.futures.TimeoutError)):
        return Failure.NO_ANSWER
    if name == "P2PHandlerError":  # by name, so as not to import hivemind here
        return Failure.NO_ANSWER if any(words in text for words in _BUSY) else Failure.REFUSED
    unreachable = isinstance(error, (OSError, EOFError)) or name in _DAEMON_ERRORS
    return Failure.UNREACHABLE if unreachable else Failure.NO_ANSWER


def stated_limit(error: BaseException) -> int | None:
    """Returns the most tokens that a server says it accepts in a request; None if it does not say."""
    match = re.search(r"max_batch_size \((\d{1,9})\)", str(error))
    return int(match[1]) if match else None


def lacks_prompts(error: BaseException | str) -> bool:
    """Whether a server only lacked the deep prompts of digests."""
    return LACKS_PROMPTS in str(error)


def may_have_room_later(error: BaseException) -> bool:
    """Whether a server without room for a session may have room at other times."""
    return not any(words in str(error) for words in _NEVER_ROOM)


def can_have_more_room(error: BaseException) -> bool:
    """Whether a server without room for a session would have room with a larger cache."""
    return _TOO_LONG not in str(error)


def drop_traceback(error: BaseException) -> None:
    """Frees what the frames of an error's traceback refer to, such as the tensors of a request.

    A task and its exception refer to each other through the traceback, so its frames would stay in memory until a full
    garbage collection, a quarter of an hour later, and one dead server fails hundreds of requests.
    """
    seen, left = set[int](), [error]
    while left:
        error = left.pop()
        error.__traceback__ = None
        seen.add(id(error))  # causes may refer to each other
        left += [one for one in (error.__cause__, error.__context__) if one is not None and id(one) not in seen]
