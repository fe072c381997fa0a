"""Executes the commands from standard input with redis-py: see ../README.md."""

import json
import sys
import threading
from typing import Any

import redis

client = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
writing = threading.Lock()


def tell(line: dict[str, Any]) -> None:
    with writing:
        print(json.dumps(line), flush=True)


def call(order: dict[str, Any]) -> None:
    told: dict[str, Any]
    try:
        told = {"reply": client.execute_command(*order["command"])}
    except redis.ResponseError as error:
        told = {"refused": str(error)}
    except redis.RedisError as error:
        told = {"failed": f"{type(error).__name__}: {error}"}
    tell({"id": order["id"], **told})


tell({"client": "redis-py", "version": redis.__version__})
for line in sys.stdin:
    threading.Thread(target=call, args=(json.loads(line),), daemon=True).start()
