"""Which server gets the requests about a key: the only server, a node of a cluster, or the primary that Sentinels name."""

from __future__ import annotations

import logging
import random
import weakref
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.crc import key_slot
from redis.exceptions import ResponseError

from ._wire import FOREVER, Address, LinkBase, NotSent

if TYPE_CHECKING:
    from ._runtime import Runtime

logger = logging.getLogger("lockward")

#: Times in seconds: how long the client uses an answer of the Sentinels, how long an answer may take, and how long a request
#: waits for an answer if the client knows a primary.
SENTINEL_PERIOD, SENTINEL_LIMIT, SENTINEL_PATIENCE = 5.0, 1.0, 0.25


class Server:
    """The only server. Its address is None here, because redis-py's client knows the address."""

    def __init__(self, client: Any, runtime: Runtime) -> None:
        self._client, self.runtime = weakref.ref(client), runtime

    def client(self) -> Any:
        client = self._client()
        if client is None:
            raise NotSent("the client has been dropped")
        return client

    def node_of(self, key: bytes, attempt: int = 0) -> Address | None:
        """The node to ask about a key."""
        return None

    def redirect(self, reply: Exception, node: Address | None) -> Address | None:
        """The node to ask after a node has replied MOVED or ASK."""
        raise ResponseError(f"{reply}. The server is a cluster node: use redis-py's RedisCluster as the client")

    async def connect(self, node: Address | None, until: float) -> LinkBase:
        """A new connection to the node. Sentinels may name another node."""
        return await self.runtime.connect(self.client().connection_pool, until)


class Cluster(Server):
    """The cluster nodes that redis-py's client knows.

    After two failures, every second attempt asks another node, and this node redirects the client. So the client does not have
    to wait until its map of the cluster is up to date.
    """

    def __init__(self, client: Any, runtime: Runtime) -> None:
        super().__init__(client, runtime)
        self._moved: dict[int, Address] = {}  # the addresses in replies MOVED, which are newer than the client's map
        self._loading: Any = None

    def node_of(self, key: bytes, attempt: int = 0) -> Address | None:
        client, slot = self._client(), key_slot(key)
        if client is None:
            return None
        nodes = client.nodes_manager
        known = nodes.slots_cache.get(slot)
        found = self._moved.get(slot) or ((known[0].host, int(known[0].port)) if known else None)
        if found is not None and (attempt < 2 or attempt % 2):
            return found
        self._moved.pop(slot, None)
        every: list[Address] = [(node.host, int(node.port)) for node in list(nodes.nodes_cache.values())]
        return random.choice([node for node in every if node != found] or every) if every else None

    def redirect(self, reply: Exception, node: Address | None) -> Address | None:
        try:
            code, slot, to = str(reply).split()[:3]
            host, _, port = to.rpartition(":")  # no host means the host of the node that redirects
            host, port = self.client().nodes_manager.remap_host_port(host or (node[0] if node else ""), int(port))
            if code == "MOVED":
                self._moved[int(slot)] = host, int(port)
        except ValueError as error:
            raise NotSent(f"a redirection that names no node: {reply}") from error
        return host, int(port)

    async def connect(self, node: Address | None, until: float) -> LinkBase:
        client = self.client()
        if node is None:
            # redis-py's asyncio client loads its map of slots at its first command. The locks send no command through this
            # client, so load the map here.
            if self._loading is None or self._loading.done():
                self._loading = self.runtime.start(client.initialize())
            raise NotSent("no cluster node is known yet")
        known = next(iter(client.nodes_manager.nodes_cache.values()))
        pool = known if hasattr(known, "connection_class") else client.get_redis_connection(known).connection_pool
        return await self.runtime.connect(pool, until, node)


class Sentinels(Server):
    """The primary that Sentinels name. While no Sentinel answers, this is the last primary that a Sentinel has named."""

    def __init__(self, client: Any, runtime: Runtime) -> None:
        super().__init__(client, runtime)
        self._primary: Address | None = None
        self._asked = self._heard = -FOREVER

    def node_of(self, key: bytes, attempt: int = 0) -> Address | None:
        if monotonic() > self._asked + SENTINEL_PERIOD:
            self._ask_all()
        return self._primary

    async def connect(self, node: Address | None, until: float) -> LinkBase:
        self._ask_all()
        asked, most = self._asked, (monotonic() + until) / 2
        limit = until if self._primary is None else min(asked + SENTINEL_PATIENCE, most)
        while self._heard < asked and monotonic() < limit:
            await self.runtime.sleep(0.002)
        if self._primary is None:
            raise NotSent("no Sentinel answers")
        link = await self.runtime.connect(self.client().connection_pool, until, self._primary)
        try:
            [role] = await link.converse([("ROLE",)], until)  # the server may refuse this command to the user
            if not isinstance(role, ResponseError) and not (isinstance(role, list) and role[:1] == [b"master"]):
                raise NotSent("the server is not the primary")
        except BaseException:
            link.close()
            raise
        return link

    def _ask_all(self) -> None:
        """Ask all Sentinels at once, if no such request is in progress. The first answer counts."""
        client, now = self._client(), monotonic()
        if client is None or (self._heard < self._asked and now < self._asked + SENTINEL_LIMIT):
            return
        self._asked = now
        for sentinel in list(client.connection_pool.sentinel_manager.sentinels):
            self.runtime.start(self._ask(sentinel.connection_pool, now))

    async def _ask(self, pool: Any, asked: float) -> None:
        theirs, until = self.client().connection_pool, asked + SENTINEL_LIMIT
        try:
            link = await self.runtime.connect(pool, until)
            try:
                [reply] = await link.converse([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", theirs.service_name)], until)
            finally:
                link.close()
        except Exception as error:
            logger.debug("a Sentinel does not answer: %s", error)
            return
        if not isinstance(reply, list) or self._heard >= asked:
            return
        host = getattr(theirs.sentinel_manager, "_force_master_ip", None) or reply[0].decode()
        former, self._primary = self._primary, (host, int(reply[1]))
        self._heard = monotonic()
        if former not in (None, self._primary):
            self.runtime.connection_lost(former)
