"""Connections of our own, made as those of a redis-py client are.

redis-py's own would do for neither waiting nor renewing: others share them, their replies may be decoded, and they repeat
requests for longer than a wait limit or a lease may last.
"""

from __future__ import annotations

import copy
import socket
from dataclasses import replace
from typing import Any

import redis.asyncio
from redis.exceptions import ConnectionError, RedisClusterException

from . import _course as course
from ._course import Ask, Redirect

#: How long to wait for a connection, or for a reply that should come at once, in seconds.
PROMPT = 5.0

#: A machine that is gone closes no connection: after how many seconds the system asks whether it is there, and how often.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_LEFT_OUT = (
    "event_dispatcher",
    "himport_registry",
    "maintenance_notification_hash",
    "maintenance_state",
    "orig_host_address",
    "orig_socket_connect_timeout",
    "orig_socket_timeout",
    "response_callbacks",
)


def settings(theirs: dict[str, Any], ask: Ask, retry: Any, cluster: bool, reads_end: bool) -> dict[str, Any]:
    """The arguments for a connection that serves `ask`, from those of the client's own."""
    ours = {
        name: value for name, value in theirs.items() if name not in _LEFT_OUT and "maint_notifications" not in name
    }
    prompt = PROMPT if ask.limit is None else min(max(0.2, ask.limit), PROMPT)
    ours.update(
        decode_responses=False,
        health_check_interval=0,
        protocol=2,
        retry=retry,
        retry_on_error=[],
        retry_on_timeout=False,
        socket_connect_timeout=min(ours.get("socket_connect_timeout") or prompt, prompt),
        socket_timeout=prompt if reads_end else None,
    )
    if "path" not in ours:
        ours["socket_keepalive"] = True
        if ours.get("socket_keepalive_options") is None:
            ours["socket_keepalive_options"] = {
                getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
            }
    if cluster:
        ours.pop("redis_connect_func", None)  # it belongs to the client, which would never be let go
    if ask.redirect is not None:
        ours.update(host=ask.redirect.host or ours.get("host"), port=ask.redirect.port)
    return ours


def is_cluster(client: Any) -> bool:
    return hasattr(client, "nodes_manager")


def place(client: Any, key: Any, to: Redirect | None) -> Any:
    """Which node an exchange goes to: connections to the same one may be used again."""
    if to is not None:
        return (to.host, to.port)
    if not is_cluster(client):
        return None
    found = node(client, key)
    return (found.host, int(found.port))


def node(client: Any, key: Any) -> Any:
    """Which one of a cluster has the key. Where the map has none, it may soon."""
    try:
        return client.get_node_from_key(key)
    except RedisClusterException as error:
        raise ConnectionError(str(error)) from error


def remapped(client: Any, ask: Ask) -> Ask:
    """As the client has been told to reach the nodes."""
    if ask.redirect is None or not is_cluster(client):
        return ask
    host, port = client.nodes_manager.remap_host_port(ask.redirect.host, ask.redirect.port)
    return replace(ask, redirect=ask.redirect._replace(host=host, port=port))


def name(connection: Any) -> Any:
    """By which the server was found; none for a Unix socket."""
    host = getattr(connection, "host", None)
    return None if host is None else (host, int(connection.port))


def sentinels(client: Any) -> list[Any]:
    """Clients of those who say where the primary is."""
    pool = getattr(client, "connection_pool", None)
    if pool is None or not getattr(pool, "is_master", False):
        return []
    return list(pool.sentinel_manager.sentinels)


def asking(client: Any, sentinel: Any, kind: Any, retry: Any, reads_end: bool) -> Any:
    """As the client asks its Sentinels, but this one alone, which has its time to answer; and the pool to be closed."""
    theirs = sentinel.connection_pool
    ours = settings(theirs.connection_kwargs, Ask(None, (), course.GRACE), retry, False, reads_end)
    pool = kind.ConnectionPool(connection_class=theirs.connection_class, **ours)
    manager = copy.copy(client.connection_pool.sentinel_manager)
    manager.sentinels = [kind.Redis(connection_pool=pool)]
    return manager, pool


def another(found: Any, connection: Any) -> Any:
    """The name that a Sentinel has told, if the connection was not made by it."""
    return None if tuple(found) == name(connection) else found


def check(client: Any, asynchronous: bool) -> None:
    if not hasattr(client, "connection_pool") and not is_cluster(client):
        raise TypeError(f"a client of redis-py is needed, not {type(client).__name__}")
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)) != asynchronous:
        raise TypeError(f"this client belongs to {'lockward' if asynchronous else 'lockward.asyncio'}.Lock")
