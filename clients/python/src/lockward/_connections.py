"""Connections with the options of a redis-py client.

redis-py's own connections are fit for neither waiting nor renewing: others share them, their replies may be decoded, and they
repeat requests for longer than a wait limit or a lease may last.
"""

from __future__ import annotations

import copy
import socket
from dataclasses import replace
from typing import Any

import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisClusterException, RedisError

from ._plan import RESPONSE_LIMIT, Exchange, Redirect
from ._tenure import Tenure

#: How long opening a connection may take, or reading from one, in seconds.
CONNECT_LIMIT = 5.0
#: How many idle connections to each node are kept.
MAX_IDLE = 16

#: A host that is gone closes no connection: TCP probes it after 30 idle seconds, 3 times, every 5 seconds.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_UNUSED_OPTIONS = (
    "event_dispatcher",
    "himport_registry",
    "maintenance_notification_hash",
    "maintenance_state",
    "orig_host_address",
    "orig_socket_connect_timeout",
    "orig_socket_timeout",
    "response_callbacks",
)


def options(theirs: dict[str, Any], exchange: Exchange, asynchronous: bool, cluster: bool) -> dict[str, Any]:
    """The options of a connection for `exchange`, made from those of the client."""
    ours = {
        name: value
        for name, value in theirs.items()
        if name not in _UNUSED_OPTIONS and "maint_notifications" not in name
    }
    limit = CONNECT_LIMIT if exchange.limit is None else min(max(0.2, exchange.limit), CONNECT_LIMIT)
    ours.update(
        decode_responses=False,
        health_check_interval=0,
        protocol=2,
        retry=redis.asyncio.retry.Retry(NoBackoff(), 0) if asynchronous else redis.retry.Retry(NoBackoff(), 0),
        retry_on_error=[],
        retry_on_timeout=False,
        socket_connect_timeout=min(ours.get("socket_connect_timeout") or limit, limit),
        socket_timeout=None if asynchronous else limit,  # in asyncio the exchange has a limit
    )
    if "path" not in ours:
        ours["socket_keepalive"] = True
        if ours.get("socket_keepalive_options") is None:
            ours["socket_keepalive_options"] = {
                getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
            }
    if cluster:
        ours.pop("redis_connect_func", None)  # a method of the client: the connection would keep the client alive
    if exchange.redirect is not None:
        ours.update(host=exchange.redirect.host or ours.get("host"), port=exchange.redirect.port)
    return ours


def is_cluster(client: Any) -> bool:
    return hasattr(client, "nodes_manager")


def node_id(client: Any, key: Any, to: Redirect | None) -> Any:
    """What identifies the node of an exchange: connections to the same node are used again."""
    if to is not None:
        return (to.host, to.port)
    if not is_cluster(client):
        return None
    found = node(client, key)
    return (found.host, int(found.port))


def node(client: Any, key: Any) -> Any:
    """The cluster node that has the key. ConnectionError while the client's slot map has none."""
    try:
        return client.get_node_from_key(key)
    except RedisClusterException as error:
        raise ConnectionError(str(error)) from error


def by_node(client: Any, tenures: list[Tenure]) -> list[list[Tenure]]:
    """Groups of tenures whose keys are on the same node."""
    if client is None or not is_cluster(client):
        return [tenures] if tenures else []
    groups: dict[Any, list[Tenure]] = {}
    for tenure in tenures:
        try:
            found = node_id(client, tenure.key, None)
        except RedisError:
            found = None
        groups.setdefault(found, []).append(tenure)
    return list(groups.values())


def remapped(client: Any, exchange: Exchange) -> Exchange:
    """The exchange with its redirect as the client's address map has it."""
    if exchange.redirect is None or not is_cluster(client):
        return exchange
    host, port = client.nodes_manager.remap_host_port(exchange.redirect.host, exchange.redirect.port)
    return replace(exchange, redirect=exchange.redirect._replace(host=host, port=port))


def server_name(connection: Any) -> Any:
    """The host name and port that the connection was made with. None for a Unix socket."""
    host = getattr(connection, "host", None)
    return None if host is None else (host, int(connection.port))


def sentinels(client: Any) -> list[Any]:
    """The client's clients for Sentinels; none if it does not use Sentinels, or is for replicas."""
    pool = getattr(client, "connection_pool", None)
    if pool is None or not getattr(pool, "is_master", False):
        return []
    return list(pool.sentinel_manager.sentinels)


def manager_for(client: Any, sentinel: Any, asynchronous: bool) -> Any:
    """A copy of the client's Sentinel manager that asks one Sentinel alone, and the connection pool to be closed."""
    theirs = sentinel.connection_pool
    ours = options(theirs.connection_kwargs, Exchange(None, (), RESPONSE_LIMIT), asynchronous, cluster=False)
    kind: Any = redis.asyncio if asynchronous else redis
    pool = kind.ConnectionPool(connection_class=theirs.connection_class, **ours)
    manager = copy.copy(client.connection_pool.sentinel_manager)
    manager.sentinels = [kind.Redis(connection_pool=pool)]
    return manager, pool


def other_name(found: Any, connection: Any) -> Any:
    """The name that a Sentinel has given, if the connection was made with another one."""
    return None if tuple(found) == server_name(connection) else found


def check_client(client: Any, asynchronous: bool) -> None:
    if not hasattr(client, "connection_pool") and not is_cluster(client):
        raise TypeError(f"the client must be one of redis-py, not {type(client).__name__}")
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)) != asynchronous:
        raise TypeError(f"this client must be used with {'lockward' if asynchronous else 'lockward.asyncio'}.Lock")
