"""What is exchanged with a server, and how long that may take.

The protocol is written once, in coroutines. In asyncio, the event loop runs them. With threads, what they await blocks instead
of suspending them, so that they run to their end at once.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import ConnectionError, TimeoutError

#: The errors of a broken connection, in contrast to error replies.
NETWORK_ERRORS = (ConnectionError, TimeoutError, OSError)
FOREVER = float("inf")

Command = tuple[Any, ...]
Address = tuple[str, int]
T = TypeVar("T")


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
    return max(1, round(seconds * 1000))


def lease_end(sent: float, lease: int) -> float:
    """When a lease of so many milliseconds ends whose request was sent at `sent`.

    The server starts counting later. A thousandth and a millisecond are subtracted, because its clock may be faster.
    """
    return sent + (lease - lease // 1000 - 1) / 1000


def back_off(failures: int) -> float:
    """The pause before the next attempt: none after the first failure, then 50 ms, doubling to a second, with jitter."""
    return min(1.0, 0.025 * float(2 ** min(failures, 6))) * random.uniform(0.5, 1.0) if failures else 0.0
