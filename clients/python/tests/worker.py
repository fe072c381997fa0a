"""The worker of the conformance suite: see clients/conformance/README.md. With `--asyncio` the
worker uses lockward.asyncio."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from typing import Any, Callable
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncNode
from redis.asyncio.cluster import RedisCluster as AsyncCluster
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

import lockward
import lockward.asyncio

KINDS = {
    lockward.LockLostError: "lost",
    lockward.LockRefusedError: "refused",
    lockward.UnreachableError: "unreachable",
    lockward.UnreplicatedError: "unreplicated",
    redis.ResponseError: "refused",
}
writing = threading.Lock()


def options(words: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def client_of(address: str, settings: dict[str, str], asynchronous: bool) -> Any:
    scheme, rest = address.split("://")
    rest, _, service = rest.partition("/")
    if scheme in ("redis", "rediss"):
        parts = urlsplit(address)
        tls = {"ssl": True, "ssl_ca_certs": settings.get("ca")} if scheme == "rediss" else {}
        if "cert" in settings:
            tls.update(ssl_certfile=settings["cert"], ssl_keyfile=settings["key"])
        users = {"username": unquote(parts.username or "") or None, "password": unquote(parts.password or "") or None}
        return (redis.asyncio if asynchronous else redis).Redis(
            host=parts.hostname or "", port=parts.port or 6379, **users, **tls
        )
    nodes = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in rest.split(","))]
    if scheme == "sentinel":
        return (AsyncSentinel if asynchronous else Sentinel)(nodes).master_for(service)
    if asynchronous:
        return AsyncCluster(startup_nodes=[AsyncNode(*node) for node in nodes])
    while True:  # the constructor asks the nodes, which may not be ready
        try:
            return RedisCluster(startup_nodes=[ClusterNode(*node) for node in nodes])
        except redis.RedisError:
            time.sleep(0.05)


class Worker:
    """Common code for threads and asyncio. A command is a generator: it yields each call that asyncio must await."""

    def __init__(self, module: Any, client: Any, settings: dict[str, str]) -> None:
        self.module, self.client = module, client
        names = {"patience": "patience", "response-limit": "response_limit"}
        self.settings: dict[str, Any] = {
            ours: int(settings[name]) / 1000 for name, ours in names.items() if name in settings
        }
        if "waiting-connections" in settings:
            self.settings["waiting_connections"] = int(settings["waiting-connections"])
        self.locks: dict[str, Any] = {}
        self.events: dict[str, Any] = {}
        self.is_closed = False

    def say(self, *words: Any) -> None:
        with writing:
            if not self.is_closed:
                print(*words, flush=True)

    def forget(self) -> None:
        """Stop printing and renewing."""
        with writing:
            self.is_closed = True
        self.locks.clear()
        gc.collect()

    def acquire(self, name: str, keys: str, *words: str) -> Any:
        given = options(list(words))
        seconds = {"lease": "lease", "hold-limit": "hold_limit"}
        arguments = {ours: int(given[theirs]) / 1000 for theirs, ours in seconds.items() if theirs in given}
        kind: dict[str, Any] = {word: int(given[word]) for word in ("slots", "weight") if word in given}
        kind.update(shared=True) if "shared" in given else None
        if "replicas" in given:
            count, _, within = given["replicas"].partition(":")
            arguments["replicas"] = (int(count), int(within) / 1000)
        if "owner" in given:
            arguments["owner"] = given["owner"]
        if "no-renewal" in given:
            arguments["auto_renewal"] = False

        def on_lost(_: Any) -> None:
            self.say("event lost", name)
            time.sleep(int(given.get("slow-lost", 0)) / 1000)

        arguments.update(self.settings, on_lost=on_lost, reentrant="," not in keys, thread_local=False)
        if "," in keys:
            lock = self.module.MultiLock(
                [self.module.Lock(self.client, key, **kind) for key in keys.split(",")], **arguments
            )
        else:
            lock = self.module.Lock(self.client, keys, **kind, **arguments)
        limit = int(given["wait"]) / 1000 if "wait" in given else None
        if not (yield lock.acquire(blocking_timeout=limit)):
            return "busy"
        self.locks[name] = lock
        return f"held {','.join(map(str, lock.fencing_tokens))}"

    def reenter(self, name: str, *words: str) -> Any:
        given = options(list(words))
        limit = int(given["wait"]) / 1000 if "wait" in given else None
        if not (yield self.locks[name].acquire(blocking_timeout=limit)):
            return "busy"
        return f"held {self.locks[name].fencing_token}"

    def release(self, name: str) -> Any:
        yield self.locks[name].release()
        return "ok"

    def renew(self, name: str) -> Any:
        yield self.locks[name].renew()
        return "ok"

    def downgrade(self, name: str, mode: str) -> Any:
        _, _, slots = mode.partition("=")
        yield self.locks[name].downgrade(**({"slots": int(slots)} if slots else {"shared": True}))
        return "ok"

    def status(self, name: str) -> Any:
        yield from ()
        return "held" if self.locks[name].held else "lost"

    def guarded(self, name: str, *command: str) -> Any:
        reply = yield self.locks[name].guarded(*command)
        return f"reply {reply.decode() if isinstance(reply, bytes) else reply}"

    def handle(self, name: str) -> Any:
        yield from ()
        return f"handle {self.locks[name].handle(detach=True)}"

    def resume(self, name: str, handle: str) -> Any:
        def on_lost(_: Any) -> None:
            self.say("event lost", name)

        self.locks[name] = yield self.module.Lock.resume(
            self.client, handle, on_lost=on_lost, thread_local=False, **self.settings
        )
        return f"held {','.join(map(str, self.locks[name].fencing_tokens))}"

    def lead(self, name: str, key: str, *words: str) -> Any:
        lease = {name: int(value) / 1000 for name, value in options(list(words)).items()}
        yield self.module.lead(self.client, key, self.led(name), **lease, **self.settings)
        return "ok"

    def resign(self, name: str) -> Any:
        yield from ()
        self.events[name].set()
        return "ok"

    def led(self, name: str) -> Callable[[Any], Any]:
        raise NotImplementedError

    def pairs(self, key: str, seconds: str) -> Any:
        lock, count, end = self.module.Lock(self.client, key), 0, time.monotonic() + float(seconds)
        while time.monotonic() < end:
            yield lock.acquire()
            yield lock.release()
            count += 1
        return f"pairs {count}"

    def start(self, line: str) -> Any:
        number, command, *words = line.split(" ")
        return number, getattr(self, command, None), words


def outcome(error: BaseException) -> str:
    kind = next((word for kind, word in KINDS.items() if isinstance(error, kind)), "other")
    return f"error {kind} {type(error).__name__}: {error}".replace("\n", " ")


class Threads(Worker):
    @classmethod
    def run(cls) -> None:
        worker: Threads | None = None
        for line in sys.stdin:
            number, command, *words = line.rstrip("\n").split(" ")
            if command == "open":
                worker = cls(lockward, client_of(words[0], options(words[1:]), False), options(words[1:]))
            elif worker is not None and command == "close":
                worker.forget()
                worker.client.close()
            elif worker is not None:
                threading.Thread(target=worker.obey, args=worker.start(line.rstrip("\n")), daemon=True).start()
                continue
            print(number, "ok", flush=True)

    def obey(self, number: str, command: Any, words: list[str]) -> None:
        try:
            self.say(number, "unsupported" if command is None else self.finish(command(*words)))
        except Exception as error:
            self.say(number, outcome(error))

    @staticmethod
    def finish(steps: Any) -> Any:
        result = None
        while True:
            try:
                result = steps.send(result)
            except StopIteration as end:
                return end.value

    def led(self, name: str) -> Callable[[Any], Any]:
        def run(lock: Any) -> None:
            resigned = self.events[name] = threading.Event()
            self.say("event leading", name, lock.fencing_token)
            while not resigned.wait(0.005):
                if lock.lost.is_set():
                    self.say("event deposed", name)
                    return

        return run


class Tasks(Worker):
    def __init__(self, client: Any, settings: dict[str, str]) -> None:
        super().__init__(lockward.asyncio, client, settings)
        self.tasks: dict[str, asyncio.Task[None]] = {}

    @classmethod
    async def run(cls) -> None:
        worker: Tasks | None = None
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\n"))
            loop.call_soon_threadsafe(lines.put_nowait, "")

        threading.Thread(target=read, daemon=True).start()
        while line := await lines.get():
            number, command, *words = line.split(" ")
            if command == "open":
                worker = cls(client_of(words[0], options(words[1:]), True), options(words[1:]))
            elif worker is not None and command == "close":
                worker.forget()
                await worker.client.aclose()
            elif worker is not None:
                worker.tasks[number] = asyncio.create_task(worker.obey(*worker.start(line)))
                continue
            print(number, "ok", flush=True)

    async def obey(self, number: str, command: Any, words: list[str]) -> None:
        try:
            self.say(number, "unsupported" if command is None else await self.finish(command(*words)))
        except asyncio.CancelledError:
            self.say(number, "cancelled")
        except Exception as error:
            self.say(number, outcome(error))

    @staticmethod
    async def finish(steps: Any) -> Any:
        result, failure = None, None
        while True:
            try:
                step = steps.send(result) if failure is None else steps.throw(failure)
            except StopIteration as end:
                return end.value
            result, failure = None, None
            try:
                result = await step
            except BaseException as error:
                failure = error

    def cancel(self, number: str) -> Any:
        yield from ()
        self.tasks[number].cancel()
        return "ok"

    def led(self, name: str) -> Callable[[Any], Any]:
        async def run(lock: Any) -> None:
            resigned = self.events[name] = asyncio.Event()
            self.say("event leading", name, lock.fencing_token)
            try:
                await resigned.wait()
            except asyncio.CancelledError:
                self.say("event deposed", name)
                raise

        return run


if __name__ == "__main__":
    if "--asyncio" in sys.argv:
        asyncio.run(Tasks.run())
    else:
        Threads.run()
