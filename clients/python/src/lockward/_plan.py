"""Plans: what a lock does, step by step, without any I/O.

A plan is a generator. It yields the next step, and gets the step's result sent, or its error thrown. `lockward._sync` and
`lockward.asyncio` carry plans out, with threads or in an event loop.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, TypeVar, Union

from redis.exceptions import ConnectionError, TimeoutError

#: How long a server has to reply to a request that does not wait, in seconds.
RESPONSE_LIMIT = 2.0
#: The errors of a broken connection, in contrast to error replies.
NETWORK_ERRORS = (ConnectionError, TimeoutError, OSError)

Command = tuple[Any, ...]
T = TypeVar("T")


class Redirect(NamedTuple):
    """The cluster node that has the key, or (is_ask) that is importing it."""

    host: str
    port: int
    is_ask: bool


@dataclass(frozen=True)
class Exchange:
    """Send the commands to the node that has `key`, and read their replies within `limit` seconds (None: no limit)."""

    key: Any
    commands: tuple[Command, ...]
    limit: float | None
    redirect: Redirect | None = None

    def on_the_wire(self) -> tuple[Command, ...]:
        """The commands that are sent: ASKING counts only for the next command."""
        if not self._is_ask:
            return self.commands
        return tuple(each for command in self.commands for each in (("ASKING",), command))

    def replies(self, received: list[Any]) -> list[Any]:
        """The replies to the commands, from those to all that was sent."""
        return received[1::2] if self._is_ask else received

    @property
    def _is_ask(self) -> bool:
        return self.redirect is not None and self.redirect.is_ask


@dataclass(frozen=True)
class Pause:
    """Do nothing for so many seconds."""

    seconds: float


#: A callable is called; in asyncio it is a coroutine function.
Step = Union[Exchange, Pause, Callable[[], Any]]
Plan = Generator[Step, Any, T]
