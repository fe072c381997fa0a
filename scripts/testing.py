"""What the Python scripts share: programs that must succeed, and servers."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """Why a program or a test failed."""


def run(*command, limit=600, **how):
    """Runs a program. Returns its standard output and standard error. Fails if the exit code is not 0, or after `limit` seconds."""
    pipe = subprocess.PIPE
    command = [str(word) for word in command]
    # The program has its own session. After the limit, all processes that it has started are killed too.
    program = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True, **how)
    try:
        out, err = program.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        out, err = program.communicate()
        raise Failed(f"{' '.join(command)} did not end within {limit} seconds\n{out}{err}") from None
    if program.returncode:
        raise Failed(f"{' '.join(command)}: exit code {program.returncode}\n{out}{err}")
    return out, err


@contextmanager
def server(*config):
    """Runs a Redis with the module and these lines of configuration. Returns its port, as text."""
    pipe = subprocess.PIPE
    command = [ROOT / "target/release/lockward-test-server", "server", *config]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    try:
        yield str(json.loads(process.stdout.readline())["port"])
    finally:
        process.stdin.close()
        process.wait()
