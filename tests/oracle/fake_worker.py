"""A worker without an engine: answers by what the question's config tells it to do.

`fake` in the config: an answer, or "hang" or "die". Machines of capability 60 do not come up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def read() -> Any:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def write(message: Any) -> None:
    print(json.dumps(message), flush=True)


def serve(machine: dict[str, Any]) -> None:
    """Be a forked child."""
    write({"forked": os.getpid()})
    if machine["capability"] == 60:
        write({"fault": "no such machine"})
        os._exit(1)
    write({"ready": True, "capability": machine["capability"], "libs": machine["libs"]})
    while (question := read()) is not None and "end" not in question:
        fake = question["config"]["fake"]
        if fake == "hang":
            time.sleep(60)
        if fake == "die":
            print("Segmentation fault", file=sys.stderr, flush=True)
            os._exit(9)
        write(fake)
    os._exit(0)


def main() -> None:
    start = read()
    if os.environ.get("FAKE_FAULT"):
        write({"fault": os.environ["FAKE_FAULT"]})
        return
    if os.environ.get("FAKE_CRASH"):
        sys.exit("ImportError: libcudart.so.13")
    write({"ready": True, "version": os.environ.get("FAKE_VERSION", "0.32.0")})
    if start["only_version"]:
        return
    while (machine := read()) is not None:
        child = os.fork()
        if child == 0:
            serve(machine)
        _, status = os.waitpid(child, 0)
        write({"ended": os.waitstatus_to_exitcode(status)})


main()
