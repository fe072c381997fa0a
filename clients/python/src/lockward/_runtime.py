"""What the runtimes of threads and of asyncio have in common: where requests go, and which leases are renewed when."""

from __future__ import annotations

import logging
import os
import random
import threading
import weakref
from collections.abc import Coroutine, Iterable
from time import monotonic
from typing import Any

import redis.asyncio
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError

from ._exchange import FOREVER, NETWORK_ERRORS, Address, Command, Exchange, NotSent, TooManyWaits
from ._tenure import Holding, Schedule, Tenure
from ._wire import MORE, error_code, pack, redirected_to

logger = logging.getLogger("lockward")

#: For how many seconds an idle connection is kept.
IDLE_LIMIT = 10.0
#: Idle connections are looked at so often, in seconds: a cut one may mean that the server was restarted.
CUT_PERIOD = 0.1
#: For how many seconds the Sentinels' answer is believed, how long one may take, and how long one is waited for if a primary
#: is known.
SENTINEL_PERIOD, SENTINEL_LIMIT, SENTINEL_PATIENCE = 5.0, 1.0, 0.25
#: How long a caller that leaves tries to give back what may have been granted, in seconds.
GIVE_UP_LIMIT = 0.2
#: Options of redis-py's own connections that make no sense for ours.
_FOREIGN_OPTIONS = ("maint", "orig_", "event_dispatcher", "registry", "response_callbacks", "redis_connect_func")


def check_client(client: Any, asynchronous: bool) -> None:
    if not hasattr(client, "connection_pool") and not hasattr(client, "nodes_manager"):
        raise TypeError(f"the client must be one of redis-py, not {type(client).__name__}")
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)) != asynchronous:
        raise TypeError(f"this client must be used with {'lockward' if asynchronous else 'lockward.asyncio'}.Lock")


class RuntimeBase:
    """The connections and the holdings of one client's locks."""

    _no_retries: Any  # redis-py's Retry without retries
    _gives_up_aside = False  # so the caller does not wait for it

    def __init__(self, client: Any) -> None:
        self._client = weakref.ref(client)
        self._is_cluster = hasattr(client, "nodes_manager")
        self._has_sentinels = bool(getattr(getattr(client, "connection_pool", None), "is_master", False))
        self.restart()

    def restart(self) -> None:
        """Begin anew in the child of a fork: connections, threads and holdings are the parent's."""
        self._mutex = threading.RLock()
        self._schedule = Schedule()
        self._idle: dict[Address | None, list[Any]] = {}
        self._waits = 0
        self._is_closed = False
        self._primary: Address | None = None  # the last that Sentinels have named
        self._asked_sentinels, self._heard_from_sentinels = -FOREVER, -FOREVER
        self._moved: dict[int, Address] = {}  # what MOVED has told: newer than the client's map

    def client(self) -> Any:
        client = self._client()
        if client is None:
            raise ConnectionError("the client has been dropped")
        return client

    # What threads and asyncio do differently.

    async def connect(self, source: Any, options: dict[str, Any], address: Address | None, limit: float) -> Any:
        """Open a connection of a pool or cluster node within `limit` seconds; if it needs Sentinels, to this address."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def start(self, action: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine where it delays nothing else."""
        raise NotImplementedError

    def wake(self) -> None:
        """Look at the schedule again."""
        raise NotImplementedError

    def call_on_lost(self, lock: Any) -> None:
        """Call the callback in a thread of its own, where it delays nothing, and log its errors."""

        def call() -> None:
            try:
                lock.on_lost(lock)
            except Exception:
                logger.exception("the on_lost callback has failed")

        try:
            threading.Thread(target=call, name="lockward-lost", daemon=True).start()
        except RuntimeError:  # the program is ending, or there are too many threads
            logger.exception("the on_lost callback has not been called")

    def load_nodes(self) -> None:
        """Begin to load the first map of a cluster."""

    # Exchanges.

    async def exchange(self, exchange: Exchange) -> list[Any]:
        if not exchange.waits:
            return await self._exchange(exchange)
        with self._mutex:
            if self._waits >= exchange.waits:
                raise TooManyWaits
            self._waits += 1
        try:
            return await self._exchange(exchange)
        finally:
            with self._mutex:
                self._waits -= 1

    async def _exchange(self, exchange: Exchange) -> list[Any]:
        until = monotonic() + exchange.limit
        if self._has_sentinels and monotonic() > self._asked_sentinels + SENTINEL_PERIOD:
            self._ask_sentinels()
        try:
            node = self._node_of(exchange.key, exchange.attempt, exchange.asking)
            link = self._take_idle(node, not exchange.is_repeatable)
            if link is None:
                link, node = await self._open(node, until)
        except (AuthenticationError, ResponseError):
            raise
        except NETWORK_ERRORS as error:
            raise NotSent(str(error)) from error
        commands = exchange.commands
        if exchange.asking is not None:  # ASKING counts only for the next command
            commands = tuple(each for command in commands for each in (("ASKING",), command))
        try:
            replies = await converse(link, commands, until)
        except BaseException as error:
            link.close()
            if isinstance(error, NETWORK_ERRORS):
                self.connection_lost(node)
            raise
        replies = replies if exchange.asking is None else replies[1::2]
        if self._is_fit(node, replies):
            self._keep_idle(node, link)
        else:
            link.close()
        return replies

    async def _open(self, node: Address | None, until: float) -> tuple[Any, Address | None]:
        """A new connection, and the node that it leads to."""
        try:
            if self._has_sentinels:
                node = await self._find_primary(until)
            limit = max(0.05, until - monotonic())
            source = self.client().connection_pool if not self._is_cluster else self._any_node()
            options = self._options(source, limit)
            if self._is_cluster and node is not None:
                options.update(host=node[0], port=node[1])
            link = await self.connect(source, options, node if self._has_sentinels else None, limit)
        except NETWORK_ERRORS:
            self.connection_lost(node)
            raise
        if self._has_sentinels:
            try:
                [role] = await converse(link, (("ROLE",),), until)
                if isinstance(role, list) and role[0] != b"master":
                    raise ConnectionError("the server is not the primary")
            except BaseException:
                link.close()
                raise
        return link, node

    def _any_node(self) -> Any:
        """What has the options of connections to cluster nodes."""
        node = next(iter(self.client().nodes_manager.nodes_cache.values()))
        return node if hasattr(node, "connection_class") else self.client().get_redis_connection(node).connection_pool

    def _options(self, source: Any, limit: float) -> dict[str, Any]:
        """The options of a connection that is opened within `limit` seconds, made from those of the client."""
        theirs = source.connection_kwargs.items()
        ours = {name: value for name, value in theirs if not any(word in name for word in _FOREIGN_OPTIONS)}
        ours.update(decode_responses=False, health_check_interval=0, protocol=2, socket_timeout=limit)
        ours.update(retry=self._no_retries, retry_on_error=[], retry_on_timeout=False)
        ours["socket_connect_timeout"] = min(ours.get("socket_connect_timeout") or limit, limit)
        return ours

    async def give_up(
        self, key: bytes, *commands: Command, error: BaseException | None = None, limit: float = GIVE_UP_LIMIT
    ) -> None:
        """Give back what may have been granted, once. What does not arrive ends with its lease.

        `error` is why. A task that was cancelled does not wait for it.
        """
        if isinstance(error, GeneratorExit):  # the event loop is gone
            return
        action = self._give_up(Exchange(key, commands, limit))
        if self._gives_up_aside and error is not None and not isinstance(error, Exception):
            self.start(action)
        else:
            await action

    async def _give_up(self, exchange: Exchange) -> None:
        interruption: BaseException | None = None
        for _ in range(2):
            try:
                await self.exchange(exchange)
                break
            except Exception:
                break
            except BaseException as error:  # interrupted or cancelled: it is short, and frees the lock
                interruption = error
                if isinstance(error, GeneratorExit):
                    break
        if interruption is not None:
            raise interruption

    # Where requests go.

    def _node_of(self, key: bytes, attempt: int = 0, asking: Address | None = None) -> Address | None:
        """The cluster node to ask about a key, or the last known primary. None if there is only one server.

        Every second attempt asks any other node, which knows who has the key now. So the client needs no map of the cluster
        that is up to date, and never waits for one.
        """
        if not self._is_cluster:
            return self._primary
        nodes, slot = self.client().nodes_manager, key_slot(key)
        known = nodes.slots_cache.get(slot)
        found = self._moved.get(slot) or ((known[0].host, int(known[0].port)) if known else None)
        if asking is not None:
            return self._remapped(asking, found)
        if found is None or (attempt >= 2 and attempt % 2 == 0):
            self._moved.pop(slot, None)
            every = [(node.host, int(node.port)) for node in list(nodes.nodes_cache.values())]
            if not every:
                self.load_nodes()
                raise ConnectionError("no cluster node is known yet")
            found = random.choice([node for node in every if node != found] or every)
        return found

    def _remapped(self, to: Address, of: Address | None) -> Address:
        """An address in a redirect as the client's address map has it. Without a host, it is that of the same server."""
        host, port = self.client().nodes_manager.remap_host_port(to[0] or (of[0] if of else ""), to[1])
        return host, int(port)

    def by_node(self, keys: Iterable[bytes]) -> list[list[bytes]]:
        """Groups of keys that are on the same node."""
        groups: dict[Address | None, list[bytes]] = {}
        for key in keys:
            groups.setdefault(self._safe_node_of(key), []).append(key)
        return list(groups.values())

    def _safe_node_of(self, key: bytes) -> Address | None:
        try:
            return self._node_of(key)
        except ConnectionError:
            return None

    def _is_fit(self, node: Address | None, replies: list[Any]) -> bool:
        """Note what error replies tell about nodes. Return whether the connection may be used again."""
        codes = set()
        for reply in replies:
            codes.add(error_code(reply))
            if error_code(reply) == "MOVED" and self._is_cluster:
                self._moved[int(str(reply).split()[1])] = self._remapped(redirected_to(reply), node)
        return not codes & {"READONLY", "MASTERDOWN", "LOADING"}

    # Sentinels.

    async def _find_primary(self, until: float) -> Address:
        """The primary: what Sentinels say, or while they are silent, the last that they have named."""
        self._ask_sentinels()
        asked, limit = self._asked_sentinels, until
        if self._primary is not None:
            limit = min(asked + SENTINEL_PATIENCE, (monotonic() + until) / 2)
        while self._heard_from_sentinels < asked and monotonic() < limit:
            await self.sleep(0.002)
        if self._primary is None:
            raise ConnectionError("no Sentinel answers")
        return self._primary

    def _ask_sentinels(self) -> None:
        """Ask all Sentinels at once, unless that is under way. The first answer counts."""
        with self._mutex:
            now = monotonic()
            if self._heard_from_sentinels < self._asked_sentinels and now < self._asked_sentinels + SENTINEL_LIMIT:
                return
            self._asked_sentinels = now
        for sentinel in list(self.client().connection_pool.sentinel_manager.sentinels):
            self.start(self._ask_sentinel(sentinel.connection_pool, now))

    async def _ask_sentinel(self, pool: Any, asked: float) -> None:
        theirs = self.client().connection_pool
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", theirs.service_name)
        try:
            link = await self.connect(pool, self._options(pool, SENTINEL_LIMIT), None, SENTINEL_LIMIT)
            try:
                [reply] = await converse(link, (command,), monotonic() + SENTINEL_LIMIT)
            finally:
                link.close()
        except Exception as error:
            logger.debug("a Sentinel does not answer: %s", error)
            return
        with self._mutex:
            if not isinstance(reply, list) or self._heard_from_sentinels >= asked:
                return
            host = getattr(theirs.sentinel_manager, "_force_master_ip", None) or reply[0].decode()
            former, self._primary = self._primary, (host, int(reply[1]))
            self._heard_from_sentinels = monotonic()
        if former not in (None, self._primary):
            self.connection_lost(former)

    # Idle connections.

    def _take_idle(self, node: Address | None, be_sure: bool) -> Any:
        while True:
            try:
                link = self._idle[node].pop()
            except (KeyError, IndexError):
                return None
            if link.is_open(be_sure):
                return link
            link.close()

    def _keep_idle(self, node: Address | None, link: Any) -> None:
        idle = self._idle.setdefault(node, [])
        link.idle_since = monotonic()
        idle.append(link)
        self.close_idle(FOREVER if self._is_closed or link.pid != os.getpid() else link.idle_since - IDLE_LIMIT)

    def close_idle(self, since: float = FOREVER) -> None:
        """Close the connections that were not used since then."""
        for idle in list(self._idle.values()):
            try:
                while idle and idle[0].idle_since <= since:
                    idle.pop(0).close()
            except IndexError:  # another thread has taken the last one
                pass

    def connection_lost(self, node: Address | None) -> None:
        """Renew all locks of the node at once: a server that was restarted may have forgotten them."""
        for link in self._idle.pop(node, []):
            link.close()
        for holding in self._schedule.all():
            for tenure in holding.tenures:
                if not self._is_cluster or self._safe_node_of(tenure.key) == node:
                    tenure.is_urgent = True
        self.wake()

    # Leases.

    def watch(self, holding: Holding) -> None:
        if not holding.is_over and self._schedule.add(holding):
            self.wake()

    def lose(self, holding: Holding) -> None:
        """Tell the program, once, that the lock is lost."""
        with self._mutex:
            if holding.is_over or holding.lost.is_set() or holding.pid != os.getpid():
                return
            holding.lost.set()
        lock = holding.lock()
        if lock is not None and lock.on_lost is not None:
            self.call_on_lost(lock)

    def tick(self) -> float:
        """End and renew what is due. Return when to look again."""
        now = monotonic()
        expired, due = self._schedule.take(now)
        for holding in expired:
            self.lose(holding)
        groups: dict[Any, list[tuple[Holding, Tenure]]] = {}
        for pair in due:
            groups.setdefault(self._safe_node_of(pair[1].key), []).append(pair)
        for group in groups.values():
            self.start(self._renew_together(group, now))
        self.close_idle(now - IDLE_LIMIT)
        links = [(node, link) for node, idle in list(self._idle.items()) for link in list(idle)]
        for node in {node for node, link in links if link.is_cut()} if self._schedule.holdings else ():
            self.connection_lost(node)
        # Nobody needs to wake the watcher for what is not due before it looks again anyway.
        self._schedule.next = min(self._schedule.next, now + CUT_PERIOD if links else FOREVER)
        return self._schedule.next

    async def _renew_together(self, group: list[tuple[Holding, Tenure]], now: float) -> None:
        """Renew tenures of one node in one pipeline, within a sixth of the shortest lease."""
        limit = max(0.05, min(2.0, *(min(t.lease / 6000, t.deadline - now) for _, t in group)))
        sent = monotonic()
        commands = tuple(tenure.renewal(holding) for holding, tenure in group)
        attempt = max(tenure.failures for _, tenure in group)  # after failures, another node is asked
        replies: list[Any]
        try:
            replies = await self.exchange(Exchange(group[0][1].key, commands, limit, attempt))
        except Exception as error:
            replies = [error] * len(group)
        for (holding, tenure), command, answer in zip(group, commands, replies):
            reply = answer
            if error_code(reply) == "ASK":
                try:
                    asking = redirected_to(reply)
                    [reply] = await self.exchange(Exchange(tenure.key, (command,), limit, asking=asking))
                except Exception as error:
                    reply = error
            if not holding.is_over and tenure.is_lost(holding.is_renewed, sent, command, reply):
                self.lose(holding)
            else:
                self.watch(holding)


def bare(connection: Any) -> Any:
    """The connection of redis-py, without the requests that tell the server the library's name."""
    for name in ("driver_info", "lib_name", "lib_version"):
        if getattr(connection, name, None):
            setattr(connection, name, None)
    return connection


async def converse(link: Any, commands: tuple[Command, ...], until: float) -> list[Any]:
    """Send commands, and read their replies."""
    link.send(pack(commands), until)
    replies = []
    for _ in commands:
        while (reply := link.parser.next()) is MORE:
            data = await link.receive(until)
            if not data:
                raise ConnectionError("the server has closed the connection")
            link.parser.feed(data)
        replies.append(reply)
    return replies
