"""The program that the main node runs on a worker's machine, with the worker's Python and its standard library alone.

    python3 -I .remote/<hash>.pyz NONCE COMMAND JSON       in the cluster's folder on that machine

``keima/cluster/machines/machine.py`` packs these files into one program and puts it there. The answer is one line on
standard output, ``@@NONCE {"ok": ...}`` or ``@@NONCE {"failed": text, "kind": ...}``, whatever else a shell prints. It
runs on Python 3.9 and newer, so that an old Python can report its version. The command ``serve`` answers any number
of commands (``serve.py``).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keima.cluster.agent.code import unpack_cache, unpack_release
from keima.cluster.agent.inspection import describe_this_interpreter, probe_this_machine
from keima.cluster.agent.owner import enter_owner, set_aside_other_runs, start_owned_worker, stop_owned_worker
from keima.cluster.agent.poll import link_file
from keima.cluster.agent.process import CommandFailed, read_log_tail, report_alive
from keima.cluster.agent.serve import serve_requests

COMMANDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "probe": probe_this_machine,
    "start": start_owned_worker,
    "stop": stop_owned_worker,
    "alive": report_alive,
    "own": enter_owner,
    "give_way": set_aside_other_runs,
    "tail": read_log_tail,
    "link": link_file,
    "unpack": unpack_release,
    "unpack_cache": unpack_cache,
}


def main(argv: list[str]) -> int:
    """Carry out one command and print the answer, or serve."""
    nonce, command, text = argv
    os.umask(0o077)
    if command == "serve":
        return serve_requests(nonce, answer_command)
    try:
        request = json.loads(text)
        if isinstance(request, dict) and "request" in request:  # a private request is in a file
            path = Path(request["request"])
            request = json.loads(path.read_text())
            path.unlink()
        answer = answer_command(command, request)
    except (OSError, ValueError) as error:
        answer = failure_answer(error)
    sys.stdout.write(f"\n@@{nonce} {json.dumps(answer)}\n")
    return 0


def answer_command(command: str, request: Any) -> dict[str, Any]:
    """Carry out one command; return what is answered."""
    try:
        return {"ok": describe_this_interpreter(request) if command == "inspect" else COMMANDS[command](request)}
    except Exception as error:
        return failure_answer(error)


def failure_answer(error: Exception) -> dict[str, Any]:
    """Return the answer that reports an error."""
    if isinstance(error, CommandFailed):
        return {"failed": str(error), "kind": error.kind}
    return {"failed": f"{type(error).__name__}: {error}", "kind": "disk" if isinstance(error, OSError) else "failed"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
