"""What replies mean."""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple

from redis.exceptions import ResponseError

from ._plan import Redirect
from .errors import LockRefused, lock_error

_CODES = {
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
}
_TRANSIENT = {"UNBLOCKED", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"}
#: The owner does not hold the lock any more as the client believed. (WRONGTYPE: the key was overwritten.)
_DENIALS = {"NOTHELD", "HOLDS", "WRONGTYPE"}
_LONGEST_LEASE = re.compile(r"invalid expire time .*: at most (\d+) ")


def error_text(error: Exception) -> str:
    """The server's text. redis-py removes the first word of some errors, and gives them a class instead."""
    text = str(error)
    code = _CODES.get(type(error).__name__)
    return text if code is None or text.startswith(code) else f"{code} {text}".strip()


def error_code(error: Exception) -> str:
    return error_text(error).partition(" ")[0]


def is_transient(reply: Any) -> bool:
    """Whether the server, or another one in its place, may accept the same request later."""
    return isinstance(reply, ResponseError) and error_code(reply) in _TRANSIENT


def denies_tenure(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and error_code(reply) in _DENIALS


def longest_lease(reply: Any) -> int | None:
    """The longest lease in milliseconds that the server accepts, if it refuses a longer one. Its limit may have changed
    meanwhile."""
    found = _LONGEST_LEASE.search(error_text(reply)) if isinstance(reply, ResponseError) else None
    return int(found[1]) if found else None


def redirect(reply: Any) -> Redirect | None:
    """Where MOVED or ASK leads."""
    if not isinstance(reply, ResponseError) or error_code(reply) not in ("MOVED", "ASK"):
        return None
    host, _, port = error_text(reply).split()[-1].rpartition(":")
    return Redirect(host, int(port), error_code(reply) == "ASK")


def decoded(reply: Any, decode: Callable[[bytes], Any]) -> Any:
    """The reply with its strings as `decode` returns them."""
    if isinstance(reply, list):
        return [decoded(each, decode) for each in reply]
    return decode(reply) if isinstance(reply, bytes) else reply


class Holder(NamedTuple):
    owner: bytes
    token: int
    holds: int
    lease_left: int  # milliseconds


def holders(key: Any, info: Any) -> list[Holder]:
    """The holders of a lock, from a reply to LOCK.INFO."""
    if isinstance(info, ResponseError):
        raise lock_error(LockRefused, error_text(info), key)
    maps = map(_as_map, _as_map(info)[b"holders"] if info is not None else [])
    return [Holder(h[b"owner"], h[b"token"], h[b"holds"], h[b"lease-left"]) for h in maps]


def _as_map(reply: Any) -> dict[Any, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2]))
