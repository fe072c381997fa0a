"""Servers for the tests, each with a folder and a port of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

import pytest
import redis
import redis.asyncio

import lockward
import lockward.asyncio

Answer = Callable[[list[bytes]], bytes]
PROGRAM = Path(__file__).parents[3] / "target" / "release" / "lockward-test-server"


def eventually(condition: Callable[[], Any], within: float = 20.0) -> Any:
    """Wait until the condition is true, and return its value."""
    until = time.monotonic() + within
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, "the condition is still false"
        time.sleep(0.005)


async def eventually_in_loop(condition: Callable[[], Any], within: float = 20.0) -> Any:
    """Wait until the condition is true, and return its value. Other tasks run meanwhile."""
    until = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < until, "the condition is still false"
        await asyncio.sleep(0.005)
    return found


class Process:
    """Runs the program of tests/src/bin/lockward-test-server.rs, which describes its protocol."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts = self._answer()
        self.port = int(self.facts["port"])

    def ask(self, command: str) -> Any:
        assert self._process.stdin
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the server has ended: see the error output"
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0, "the server has crashed: see the error output"


class Server(Process):
    def __init__(self, *config: str, module: str = "") -> None:
        super().__init__("server", "--module", module, *config)

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, **options)

    def stop(self) -> None:
        self.ask("pause")

    def resume(self) -> None:
        self.ask("resume")

    def kill(self) -> None:
        self.ask("kill")

    def restart(self, module: str = "") -> None:
        """Restart the server. `module`: additional arguments for the module."""
        if module:
            self.ask(f"module {module}")
        self.ask("restart")


class Scripted:
    """A server that answers each request with what a function returns. After an empty answer the
    server closes the connection."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as requests, suppress(OSError):
            while line := requests.readline():
                words = []
                for _ in range(int(line[1:])):
                    words.append(requests.read(int(requests.readline()[1:]) + 2)[:-2])
                reply = self.answer(words)
                if not reply:
                    return
                client.sendall(reply)


@pytest.fixture
def scripted() -> Iterator[Callable[[Answer], Scripted]]:
    servers: list[Scripted] = []

    def start(answer: Answer) -> Scripted:
        servers.append(Scripted(answer))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


@pytest.fixture(scope="session")
def shared() -> Any:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(shared: Server) -> Server:
    """An empty server that all tests share."""
    shared.client().flushall()
    return shared


@pytest.fixture
def own_server() -> Any:
    """A function that starts a server for this test alone."""
    servers = []

    def start(*config: str, module: str = "") -> Server:
        servers.append(Server(*config, module=module))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


@pytest.fixture
def client(server: Server) -> Any:
    with server.client() as client:
        yield client


def holders(client: Any, name: Any) -> list[bytes]:
    info = as_map(client.execute_command("LOCK.INFO", name))
    return [as_map(holder)[b"owner"] for holder in info[b"holders"]] if info else []


def waiters(client: Any, name: Any) -> int:
    info = as_map(client.execute_command("LOCK.INFO", name))
    return int(info[b"waiters"]) if info else 0


def held_for(client: Any, name: Any) -> float:
    """For how many seconds the lock's only holder has held it."""
    [holder] = as_map(client.execute_command("LOCK.INFO", name))[b"holders"]
    return int(as_map(holder)[b"held-for"]) / 1000


def as_map(reply: Any) -> Any:
    return dict(zip(reply[::2], reply[1::2])) if isinstance(reply, list) else reply


def calls(client: redis.Redis, command: str) -> int:
    """How often the server has received a command."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


class InLoop:
    """Wraps an asyncio object. The wrapped methods block, so that one test serves `lockward` and `lockward.asyncio`."""

    def __init__(self, found: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._found, self._loop = found, loop

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self._found, name))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        given = [self._bare(each) for each in arguments]
        return self._wrap(self._found(*given, **options))

    def __enter__(self) -> Any:
        return self._wrap(self._loop.run_until_complete(self._found.__aenter__()))

    def __exit__(self, *exception: Any) -> None:
        self._loop.run_until_complete(self._found.__aexit__(*exception))

    def _bare(self, argument: Any) -> Any:
        if isinstance(argument, list):
            return [self._bare(each) for each in argument]
        return argument._found if isinstance(argument, InLoop) else argument

    def _wrap(self, found: Any) -> Any:
        if inspect.isawaitable(found):
            return self._wrap(self._loop.run_until_complete(found))
        ours = getattr(type(found), "__module__", "").startswith("lockward")
        return InLoop(found, self._loop) if ours or inspect.ismethod(found) or inspect.isclass(found) else found


@pytest.fixture(params=["threads", "asyncio"])
def module(request: Any) -> Iterator[Any]:
    """`lockward`, or `lockward.asyncio` in an event loop."""
    if request.param == "threads":
        lockward.connect = lambda port, **options: redis.Redis(port=port, **options)
        yield lockward
        return
    loop = asyncio.new_event_loop()
    made: list[Any] = []

    class Module:
        def __getattr__(self, name: str) -> Any:
            return InLoop(getattr(lockward.asyncio, name), loop)

        def connect(self, port: int, **options: Any) -> Any:
            made.append(redis.asyncio.Redis(port=port, **options))
            return made[-1]

        def run(self, action: Any) -> Any:
            return loop.run_until_complete(action)

    yield Module()
    for client in made:
        loop.run_until_complete(client.aclose() if hasattr(client, "aclose") else client.close())
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.wait({task}))
    loop.close()


@pytest.fixture
def own(module: Any, server: Any) -> Any:
    return module.connect(server.port)
