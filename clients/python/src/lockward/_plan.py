"""Plans: what a lock does, step by step, without any I/O.

A plan is a generator. It yields the next step, and gets the step's result sent, or its error thrown. `lockward._sync` and
`lockward.asyncio` carry plans out, with threads or in an event loop.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar, Union

from redis.exceptions import ConnectionError, TimeoutError

#: The errors of a broken connection, in contrast to error replies.
NETWORK_ERRORS = (ConnectionError, TimeoutError, OSError)
FOREVER = float("inf")

Command = tuple[Any, ...]
Address = tuple[str, int]
T = TypeVar("T")


class Connect(NamedTuple):
    """Open a connection of a pool, or of a cluster node, with these options, within `limit` seconds."""

    source: Any
    options: dict[str, Any]
    address: Address | None  # for a connection that finds its server through Sentinels
    limit: float


class Receive(NamedTuple):
    """Wait for bytes until then, by the monotonic clock."""

    link: Any
    until: float


class Pause(NamedTuple):
    """Do nothing for so many seconds."""

    seconds: float


Plan = Generator[Union[Connect, Receive, Pause], Any, T]


class Exchange(NamedTuple):
    """Send the commands to the node that has `key`, and read their replies within `limit` seconds."""

    key: bytes
    commands: tuple[Command, ...]
    limit: float
    attempt: int = 0
    asking: Address | None = None  # the cluster node that is importing the key
    waits: int = 0  # if not 0, the server is asked to wait, on one of so many connections
    is_repeatable: bool = True


class NotSent(ConnectionError):
    """No connection could be opened, so the commands were not sent."""


class TooManyWaits(Exception):
    """All waiting connections are in use."""


def millis(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def lease_end(sent: float, lease: int) -> float:
    """When a lease of so many milliseconds ends whose request was sent at `sent`.

    The server starts counting later. A thousandth and a millisecond are subtracted, because its clock may be faster.
    """
    return sent + (lease - lease // 1000 - 1) / 1000


def back_off(failures: int) -> float:
    """The pause before the next attempt: none after the first failure, then 50 ms, doubling to a second, with jitter."""
    return min(1.0, 0.025 * float(2 ** min(failures, 6))) * random.uniform(0.5, 1.0) if failures else 0.0
