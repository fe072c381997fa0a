"""Peers: lock libraries written in Python, as contestants of `make bench-peers`.

    peers.py redis-py <job> <address> --clients N --seconds S

A server of Redis listens at the address. In the job `uncontended` each client acquires and releases a lock of its own; in
`contended` all want the same lock, and count under it. The outcome is one line of JSON. Whatever goes wrong ends the
program, with a reason on standard error.

Clients are threads, each with a connection of its own. One process would run one thread at a time, and be measured rather
than the library: so the threads are spread over as many processes as there are CPUs, and count in memory that these share.
"""

import argparse
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from ctypes import c_int64
from multiprocessing.connection import wait

import redis

WARM_UP = 1.5
# How long it may take for all clients to connect, or to end.
PATIENCE = 30


class Contest:
    """What all processes know."""

    def __init__(self, arguments):
        host, port = arguments.address.rsplit(":", 1)
        self.address = (host, int(port))
        self.shared = arguments.job == "contended"
        self.clients = arguments.clients
        self.seconds = arguments.seconds
        # By lock. Nothing but the lock protects them: grants that are missing here show that it did not exclude.
        self.counters = multiprocessing.RawArray(c_int64, self.clients)
        # The client that had the shared lock last, protected likewise.
        self.holder = multiprocessing.RawValue(c_int64)
        # A number that no earlier run has left behind in the server.
        self.name = f"lock:{os.getpid()}"


class Client:
    """One client, and what it has seen. Waits are in seconds."""

    def __init__(self, contest, index):
        self.contest = contest
        self.index = index
        self.own = 0 if contest.shared else index
        host, port = contest.address
        self.connection = redis.Redis(host=host, port=port)
        self.connection.ping()
        self.lock = self.connection.lock(f"{contest.name}:{self.own}")
        self.waits = []
        self.handoffs = 0

    def run(self, begin):
        """Acquires and releases until the time is up; what is granted from `begin` counts."""
        end = begin + self.contest.seconds
        while (asked := time.monotonic()) < end:
            if not self.lock.acquire(blocking_timeout=end - asked):
                return
            granted = time.monotonic()
            if begin <= granted < end:
                self.count()
                self.waits.append(granted - asked)
            self.lock.release()

    def count(self):
        counters, holder = self.contest.counters, self.contest.holder
        before = counters[self.own]
        time.sleep(0)
        counters[self.own] = before + 1
        if self.contest.shared and holder.value != self.index:
            self.handoffs += 1
            holder.value = self.index


def run_clients(contest, indexes, pipe):
    """Runs some of the clients, as a process of its own. Tells the parent `None` when they are connected, then what they
    have seen, or at any time a reason why they cannot go on."""
    try:
        clients = [Client(contest, index) for index in indexes]
        pipe.send(None)
        begin = pipe.recv()
        failed = threading.excepthook = Failed()
        threads = [threading.Thread(target=client.run, args=[begin], daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not failed.reason:
                thread.join(0.2)
        pipe.send(failed.reason or [(client.index, client.waits, client.handoffs) for client in clients])
    except redis.RedisError as error:
        pipe.send(f"a client cannot connect: {error}")


class Failed:
    """Keeps why a thread has failed."""

    def __init__(self):
        self.reason = None

    def __call__(self, failure):
        self.reason = f"{failure.exc_type.__name__}: {failure.exc_value}"


def listen(pipes, address, seconds):
    """What every process has to say. Ends the program when one cannot go on, when the server is gone (the library would
    try again and again), or when it takes longer than that."""
    said, failures, deadline = {}, 0, time.monotonic() + seconds
    while len(said) < len(pipes):
        for pipe in wait([pipe for pipe in pipes if pipe not in said], timeout=1):
            try:
                said[pipe] = pipe.recv()
            except EOFError:
                sys.exit("a process with clients has ended")
            if isinstance(said[pipe], str):
                sys.exit(said[pipe])
        try:
            socket.create_connection(address, timeout=1).close()
            failures = 0
        except OSError as error:
            failures += 1
            if failures == 2:
                sys.exit(f"the server is gone: {error}")
        if time.monotonic() > deadline:
            sys.exit(f"the clients do not connect, or end, within {PATIENCE} s")
    return list(said.values())


def run(arguments):
    contest = Contest(arguments)
    processes = min(contest.clients, os.cpu_count() or 1)
    pipes = []
    for number in range(processes):
        ours, theirs = multiprocessing.Pipe()
        indexes = range(number, contest.clients, processes)
        multiprocessing.Process(target=run_clients, args=[contest, indexes, theirs], daemon=True).start()
        theirs.close()
        pipes.append(ours)
    listen(pipes, contest.address, PATIENCE)
    # The clock is the machine's, the same for all processes.
    begin = time.monotonic() + WARM_UP
    began = time.time() + WARM_UP
    for pipe in pipes:
        pipe.send(begin)
    seen = sum(listen(pipes, contest.address, WARM_UP + contest.seconds + PATIENCE), [])
    grants = [len(waits) for _, waits, _ in sorted(seen)]
    waits = sorted(one for _, waits, _ in seen for one in waits)
    if not waits:
        sys.exit("no client got a lock while it counted")
    return {
        "peer": arguments.peer,
        "version": f"redis-py {redis.__version__}",
        "job": arguments.job,
        "clients": contest.clients,
        "began_unix_ms": round(began * 1000),
        "elapsed_ms": contest.seconds * 1000,
        "operations": sum(grants),
        "counter": sum(contest.counters),
        "grants": grants,
        "handoffs": sum(handoffs for _, _, handoffs in seen),
        "gave_up": 0,
        "acquire_us": {
            name: round(waits[(len(waits) - 1) * percent // 100] * 1e6)
            for name, percent in [("p50", 50), ("p99", 99), ("max", 100)]
        },
        "notes": f"no lease, tries every 100 ms without limit; threads of {processes} processes of CPython",
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=["redis-py"])
    parser.add_argument("job", choices=["uncontended", "contended"])
    parser.add_argument("address")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=10)
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
