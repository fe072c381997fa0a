"""The connections of one client's locks, and the renewals of the held locks."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from itertools import count, islice
from time import monotonic
from typing import Any, Callable, ClassVar, TypeVar

from redis.exceptions import AuthenticationError, ConnectionError, ResponseError, TimeoutError

from ._servers import Cluster, Sentinels, Server
from ._tenure import ENDED_WAIT, TRANSIENT, Holding, Request
from ._wire import FOREVER, Address, Broken, Command, LinkBase, NotSent, error_code, millis

logger = logging.getLogger("lockward")

#: How many seconds an idle connection stays open.
IDLE_LIMIT = 10.0
#: The seconds between two checks of the idle connections. If a connection is closed, the server may have restarted.
CUT_PERIOD = 0.1
#: If renewals are due within this number of seconds, the client sends these renewals together.
TOGETHER = 0.1
#: Each attempt waits at least this long for a reply, in seconds. So the last attempt of a call can get a reply.
SHORTEST = 0.05
#: The name of the thread or the task of the watcher.
WATCHER = "lockward"
_MAX_REDIRECTS = 5
#: How many connections to a node may be in use at a time by the requests of each queue: see `Runtime.turn`. Connections that wait
#: for a lock or for replicas do not count.
_MOST_CONNECTIONS = 16
#: The connections of locks take no option of redis-py whose name contains one of these words.
_FOREIGN_OPTIONS = ("maint", "orig_", "event_dispatcher", "registry", "response_callbacks")

T = TypeVar("T")


class Runtime:
    """The connections and holdings of one client's locks in one process. In asyncio, each event loop has its own runtime.

    The *watcher* is a thread or a task that watches the leases. It leaves requests and callbacks to other threads or tasks.
    """

    is_asynchronous: ClassVar[bool]
    event: ClassVar[type[Any]]
    #: The type of the object that stores a lock's holdings. Each attribute of this object is the holding of one `caller`.
    local: ClassVar[type[Any]]
    _link: ClassVar[type[LinkBase]]

    def __init__(self, client: Any) -> None:
        self.loop: Any = None  # only for asyncio
        self._tasks: set[Any] = set()  # only for asyncio
        self._client = weakref.ref(client)
        self.mutex = threading.RLock()
        self._idle: dict[Address | None, list[LinkBase]] = {}
        self._used_at = 0.0  # the last time at which a connection was used
        #: The queue of the callers that want a connection for a wait.
        self.turns: dict[Any, None] = {}
        #: For each node: the callers that want a connection for a request that does not wait, in order. See `turn`.
        self._turns: dict[tuple[Address | None, bool], dict[Any, None]] = {}
        self.heard_at: dict[Address | None, float] = {}  # when each node has answered last
        #: The references are weak, so that the client does not renew a lock whose object the program has dropped.
        self._holdings: weakref.WeakSet[Holding] = weakref.WeakSet()
        #: When the watcher wakes next. If a new holding is due earlier, `watch` wakes the watcher.
        self._next = FOREVER
        self._changed = self.event()
        self._is_watched = self._is_closed = False
        is_master = getattr(getattr(client, "connection_pool", None), "is_master", False)
        kind = Cluster if hasattr(client, "nodes_manager") else Sentinels if is_master else Server
        self.servers = kind(client, self)

    # What threads and asyncio do differently.

    @staticmethod
    def caller() -> Any:
        """The task that calls, or None. Threads need no name, because `threading.local` tells them apart."""

    def start(self, action: Coroutine[Any, Any, Any], name: str = "lockward-task") -> Any:
        """Run a coroutine where it delays no other work. Return a future or a task."""

    async def wait_for(self, event: Any, limit: float) -> None:
        """Wait until the event is set, or until the time is over."""

    async def wait(self, started: Any, limit: float) -> None:
        """Wait until the started work is done, or until the time is over."""

    # What threads and asyncio have in common.

    async def sleep(self, seconds: float) -> None:
        await self.wait_for(self.event(), seconds)

    def call_on_lost(self, lock: Any) -> None:
        """Call the callback where it delays no other work, and log its errors.

        A coroutine function runs in the event loop. Any other function runs in a thread of its own.
        """

        async def call() -> None:
            try:
                called = lock.on_lost(lock)
                if inspect.isawaitable(called):
                    await called
            except Exception:
                logger.exception("the on_lost callback has failed")

        is_for_loop = inspect.iscoroutinefunction(lock.on_lost)
        try:
            self.start(call()) if is_for_loop else start_thread("lockward-lost", lambda: finish(call()))
        except RuntimeError:
            logger.exception("the on_lost callback has not been called")

    # Connections.

    def by_node(self, requests: list[Request]) -> Iterable[tuple[Address | None, list[Request]]]:
        return grouped(requests, lambda request: self.servers.node_of(request.key, request.failures))

    def turn(self, node: Address | None, first: Request) -> Turn:
        """The turn of requests to a node. If a program opened thousands of connections at once, most would not be open in time.

        Requests about held locks have a queue of their own, so that they do not wait for thousands of callers that want a lock.
        """
        is_held = first.tenure is None or bool(first.tenure.token)
        queue = {} if first.is_wait or first.more else self._turns.setdefault((node, is_held), {})
        return Turn(self, queue, _MOST_CONNECTIONS)

    async def send(
        self, node: Address | None, requests: list[Request], limit: float, redirects: int = 0, *asking: Command
    ) -> None:
        """Send requests to a node in one pipeline, and store their replies. ``limit`` is a time limit in seconds.

        If a cluster node redirects a request, send the request to the node that the reply names. ``asking`` is the command
        ASKING if the slot of the requests is being moved to this node. It goes before each request.
        """
        until, first = monotonic() + limit, requests[0]
        link = await self._link_to(node, requests, until)
        was_left = link.unread > 0  # whether a caller has left before it had all replies
        try:
            commands = [command for request in requests for command in (*asking, request.begin())]
            for request in requests:  # the leases may end earlier now, even without a reply
                if request.tenure and request.tenure.deadline < FOREVER:
                    self.watch(request.holding)
            # One WAIT serves all keys, because each WAIT may last for the whole time.
            replies = await link.converse([*commands, *first.more], until)
        except BaseException as error:
            is_broken = isinstance(error, Broken)
            is_left = not (is_broken or isinstance(error, GeneratorExit) or first.is_cancelled)
            if is_left and link.unread > 0 and first.command[0] == "LOCK.ACQUIRE":
                first.link, link.is_blocked = link, first.is_wait
            else:
                link.close()
                # If a new connection fails, the server may still serve the older connections.
                if is_broken and link.idle_since:
                    self.connection_lost(link.node)
            raise
        self.heard_at[node] = monotonic()
        for request, reply in zip(requests, replies[len(asking) : len(commands) : len(asking) + 1]):
            request.take([reply, *replies[len(commands) :]])
        if any(request.code in ("READONLY", "NOREPLICAS", "MASTERDOWN", "LOADING") for request in requests):
            link.close()
            self._close_idle_to(link.node)  # a replica may keep the connections that it had as a primary
        elif was_left:  # a signal may have left a part of a reply unread
            link.close()
        else:
            self._keep_idle(link)
        redirected = [request for request in requests if request.code in ("MOVED", "ASK")]
        if redirects < _MAX_REDIRECTS:
            for to, group in grouped(redirected, lambda request: self.servers.redirect(request.reply, link.node)):
                asking = (("ASKING",),) if any(request.code == "ASK" for request in group) else ()
                await self.send(to, group, until - monotonic(), redirects + 1, *asking)

    async def _link_to(self, node: Address | None, requests: list[Request], until: float) -> LinkBase:
        """The connection that the requests need, an idle connection to the node, or a new one."""
        for request in requests:
            link, request.link = request.link, None
            if link is not None:
                return link
        try:
            # A wait leaves one idle connection for the renewals, because a full server accepts no new connection.
            return self._take_idle(node, int(requests[0].is_wait)) or await self.servers.connect(node, until)
        except Broken as error:
            raise NotSent(str(error)) from error

    async def connect(self, pool: Any, until: float, node: Address | None = None) -> LinkBase:
        """Open a connection with the options of a pool, to ``node`` or to the address in these options.

        Another thread or task opens the connection, because name lookups, handshakes and TLS ignore ``until``.
        """
        limit = max(SHORTEST, until - monotonic())
        options = pool.connection_kwargs.items()
        address = {"host": node[0], "port": node[1]} if node else {}
        ours = {name: value for name, value in options if not any(word in name for word in _FOREIGN_OPTIONS)}
        ours.update(decode_responses=False, health_check_interval=0, protocol=2, socket_timeout=limit)
        ours.update(retry=None, retry_on_error=[], retry_on_timeout=False, **address)
        ours["socket_connect_timeout"] = min(ours.get("socket_connect_timeout") or limit, limit)
        theirs = pool.connection_class(**ours)
        link = self._link(theirs, node)
        opening = self.start(link.open())
        try:
            await self.wait(opening, limit)
            if not opening.done():
                raise NotSent("no connection in time")
            if (error := opening.exception()) is not None:
                raise not_sent(error)
            theirs.redis_connect_func = None  # a method of the client would keep the client alive
        except BaseException:
            with suppress(RuntimeError):  # the event loop has closed
                opening.cancel()
                opening.add_done_callback(lambda _: link.close())
            raise
        return link

    def _take_idle(self, node: Address | None, kept: int = 0) -> LinkBase | None:
        with self.mutex:
            links = self._idle.get(node, [])
            link = links.pop() if len(links) > kept else None
        if link is not None and link.is_cut():
            link.close()
            self.connection_lost(node)
            return None
        return link

    def _keep_idle(self, link: LinkBase) -> None:
        link.idle_since = self._used_at = monotonic()
        with self.mutex:
            if not self._is_closed:
                self._idle.setdefault(link.node, []).append(link)
        if self._is_closed:
            link.close()
        elif not self._is_watched or self._next > link.idle_since + CUT_PERIOD:
            self._wake()

    def close_idle(self, since: float = FOREVER) -> None:
        """Close the idle connections that were not used after the time ``since``."""
        with self.mutex:
            for links in self._idle.values():
                while links and links[0].idle_since <= since:
                    links.pop(0).close()

    def _close_idle_to(self, node: Address | None) -> None:
        with self.mutex:
            for link in self._idle.pop(node, []):
                link.close()

    def connection_lost(self, node: Address | None) -> None:
        """Renew all locks at once: if the server has restarted, it may have forgotten them."""
        self._close_idle_to(node)
        for holding in self._watched():
            for tenure in holding.tenures:
                # A call that renews the lock repeats its request itself.
                is_being_renewed = any(request.command[:1] == ("LOCK.RENEW",) for request in tenure.requests)
                if tenure.deadline < FOREVER and not is_being_renewed:
                    tenure.renew_at = 0.0
            self._wake()

    # Leases.

    def watch(self, holding: Holding) -> None:
        """Start to renew the lock, and to watch for its loss, if the watcher does not do so already."""
        if holding.is_over:
            return
        with self.mutex:
            self._holdings.add(holding)
        if self._next > min([holding.deadline, *[tenure.renew_at for tenure in holding.tenures]]):
            self._wake()

    def lose(self, holding: Holding) -> None:
        """Tell the program, once, that the lock is lost."""
        with self.mutex:
            if holding.is_over or holding.pid != os.getpid():
                return
            holding.lost.set()
            lock, holding.lock = holding.lock(), lambda: None
        if lock is not None and lock.on_lost is not None:
            self.call_on_lost(lock)

    def _watched(self) -> list[Holding]:
        with self.mutex:  # no other thread may change the set during an iteration
            return list(self._holdings)

    def _wake(self) -> None:
        self._changed.set()
        with self.mutex:
            if not self._is_watched:
                watch = self._watch()
                try:
                    self._watcher = self.start(watch, WATCHER)
                    self._is_watched, self._is_closed = True, False
                    self._watcher.add_done_callback(self._watch_ended)
                except RuntimeError as error:
                    watch.close()
                    if self._holdings:
                        logger.warning("no lock is renewed, and no loss is reported: %s", error)

    async def _watch(self) -> None:
        """Run until no lock is held, and no connection was used in the last `IDLE_LIMIT` seconds."""
        while True:
            self._changed.clear()
            self._next = FOREVER  # so that `watch` wakes this loop if it adds a holding during this round
            self._next = self._tick(now := monotonic())
            with self.mutex:  # a call may have returned a connection meanwhile, and only this loop closes it
                is_idle = not self._holdings and not any(self._idle.values())
                if is_idle and (self._client() is None or now > self._used_at + IDLE_LIMIT):
                    self._is_watched = False
                    return
            await self.wait_for(self._changed, max(0.0, min(self._next - monotonic(), 3600.0)))

    def _watch_ended(self, watcher: Any) -> None:
        # If the event loop ends, or the program has cancelled all tasks, the next `watch` starts a new watcher.
        if watcher is self._watcher and (watcher.cancelled() or watcher.exception()):
            self._is_watched, self._is_closed, self._next = False, True, FOREVER
            self.close_idle()
            if not watcher.cancelled():
                logger.error("the watcher has failed", exc_info=watcher.exception())

    def _tick(self, now: float) -> float:
        """Report the locks whose leases are over, and renew the tenures that are due. Return the time of the next call."""
        due: list[Request] = []
        then = FOREVER
        for holding in self._watched():
            deadline = holding.deadline
            if holding.is_over or holding.lost.is_set() or now >= deadline:
                self.lose(holding)
                with self.mutex:
                    self._holdings.discard(holding)
            else:
                for tenure in holding.tenures:
                    if tenure.renew_at <= now + min(TOGETHER, holding.lease / 30_000):
                        # If the program wants no renewal, the request restores a tenure that the server has forgotten, and the
                        # new lease ends when the present lease ends.
                        lease = holding.lease if holding.is_renewed else millis(tenure.deadline - now)
                        due.append(holding.renewal(tenure, lease))
                        due[-1].failures = tenure.failures
                        # The outcome of this renewal sets this time again.
                        tenure.renew_at = now + holding.lease / 3000
                then = min([then, deadline, *[tenure.renew_at for tenure in holding.tenures]])
        for node, renewals in self.by_node(due):
            self.start(self._renew(node, renewals, now))
        self.close_idle(FOREVER if self._client() is None else now - IDLE_LIMIT)
        with self.mutex:
            idle = [(node, any(link.is_cut() for link in links)) for node, links in self._idle.items() if links]
        for node in [node for node, is_cut in idle if is_cut]:
            self.connection_lost(node)
        return min(then, now + CUT_PERIOD) if now <= self._used_at + IDLE_LIMIT else then

    async def _renew(self, node: Address | None, renewals: list[Request], now: float) -> None:
        """Renew tenures of one node in one pipeline, within a sixth of the shortest lease."""
        limit = min([2.0, *[min(r.holding.lease / 6000, r.tenure.deadline - now) for r in renewals]])
        try:
            try:
                await self.send(node, renewals, max(SHORTEST, limit))
            except Exception as error:
                logger.debug("locks are not renewed: %s", error)
            for request in renewals:
                is_lost = request.holding.note_renewal(request.tenure, request)
                self.lose(request.holding) if is_lost else self.watch(request.holding)
        finally:
            for request in renewals:  # end the requests last: another thread may send a shorter lease meanwhile
                request.end()


def not_sent(error: BaseException) -> BaseException:
    """What redis-py's error means, if redis-py could not open a connection."""
    is_broken = isinstance(error, (ConnectionError, TimeoutError, OSError))
    if isinstance(error, ResponseError):  # redis-py removes some codes from the text of the error
        is_broken = (getattr(error, "status_code", None) or error_code(error)) in TRANSIENT | ENDED_WAIT
    return NotSent(str(error)) if is_broken and not isinstance(error, AuthenticationError) else error


def start_thread(name: str, run: Callable[..., object], *arguments: Any) -> None:
    """Start a daemon thread. RuntimeError if the program is ending, or if there are too many threads."""
    if sys.is_finalizing():  # before Python 3.12, `Thread.start` would wait forever
        raise RuntimeError("the program is ending")
    threading.Thread(target=run, args=arguments, name=name, daemon=True).start()


class Turn:
    """The turn of a caller in a queue. The first ``most`` callers in the queue have their turns.

    A turn lasts until the caller's ``with`` block ends.
    """

    def __init__(self, runtime: Runtime, queue: dict[Any, None], most: int) -> None:
        self._runtime, self._queue, self._most = runtime, queue, most
        self._event: Any = None  # made by `wait`, because few callers wait
        # If a signal interrupts the caller, it leaves the queue at the latest when this object is dropped.
        self._place: Any = weakref.ref(self, lambda place: queue.pop(place, None))

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._runtime.mutex:
            self._queue.pop(self._place, None)
            self._place = None
            for place in islice(self._queue, max(0, self._most - 1), self._most):
                next_one = place()
                if next_one is not None and next_one._event is not None:
                    next_one._event.set()

    def has_begun(self) -> bool:
        """Whether the turn has begun. The first call enters the queue."""
        with self._runtime.mutex:
            self._queue.setdefault(self._place)
            return self._place in islice(self._queue, self._most)

    async def wait(self, limit: float) -> bool:
        """Wait for the turn for at most ``limit`` seconds. Return whether the turn has begun."""
        if self.has_begun():
            return True
        self._event = self._runtime.event()
        if not self.has_begun():
            await self._runtime.wait_for(self._event, max(0.0, limit))
        return self.has_begun()


def grouped(items: Iterable[T], key: Callable[[T], Address | None]) -> Iterable[tuple[Address | None, list[T]]]:
    groups: dict[Address | None, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups.items()


def finish(action: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. The coroutine must never suspend: all functions that it awaits block instead."""
    try:
        action.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the coroutine was suspended")


class _Process:
    """The state of this process. A forked child begins with a new state."""

    def begin(self) -> None:
        self.mutex = threading.RLock()
        self.runtimes: weakref.WeakKeyDictionary[Any, dict[Any, Runtime]] = weakref.WeakKeyDictionary()
        self.name, self.numbers = uuid.uuid4(), count(1)


# To look up the name of a server, Python imports a codec. If another thread imports it during a fork, no thread of the child can
# import it. So import it now.
"".encode("idna")

_process = _Process()
_process.begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.begin)


def runtime_of(client: Any, kind: type[Runtime]) -> Runtime:
    """The runtime of this client's locks. In asyncio, each event loop has its own runtime."""
    loop = asyncio.get_running_loop() if kind.is_asynchronous else None
    with _process.mutex:
        runtimes = _process.runtimes.get(client) or _process.runtimes.setdefault(client, {})
        if loop not in runtimes:
            for closed in [each for each in runtimes if each.is_closed()]:
                del runtimes[closed]
            runtimes[loop] = kind(client)
            runtimes[loop].loop = loop
        return runtimes[loop]


def new_owner() -> bytes:
    """A name for an owner, which no other tenure in any process has."""
    return f"{_process.name}:{next(_process.numbers)}".encode()
