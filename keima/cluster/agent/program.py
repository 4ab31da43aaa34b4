"""The program that the main node runs on a worker's machine, with the worker's Python and its standard library alone.

    python3 -I .remote/<hash>.pyz NONCE COMMAND JSON       in the cluster's folder on that machine

``packing.py`` packs these files into one program, which is put there. The answer is one line on
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
from typing import Any, TypeVar

from keima.cluster.agent import commands
from keima.cluster.agent.code import unpack_cache, unpack_release
from keima.cluster.agent.commands import COMMANDS, Command, to_json
from keima.cluster.agent.inspection import describe_this_interpreter, probe_this_machine
from keima.cluster.agent.owner import enter_owner, set_aside_other_runs, start_owned_worker, stop_owned_worker
from keima.cluster.agent.poll import link_file
from keima.cluster.agent.process import CommandFailed, read_log_tail, report_alive
from keima.cluster.agent.serve import serve_requests

Q = TypeVar("Q")
A = TypeVar("A")


def pair(command: Command[Q, A], handler: Callable[[Q], A]) -> tuple[str, Callable[[Any], Any]]:
    """Return a command's name and what carries it out; the type checker compares their types."""
    return command.name, handler


# Polls are answered by ``serve.py``, with the bytes of files.
HANDLERS = dict(
    (
        pair(commands.INSPECT, describe_this_interpreter),
        pair(commands.PROBE, probe_this_machine),
        pair(commands.START, start_owned_worker),
        pair(commands.STOP, stop_owned_worker),
        pair(commands.ALIVE, report_alive),
        pair(commands.OWN, enter_owner),
        pair(commands.GIVE_WAY, set_aside_other_runs),
        pair(commands.TAIL, read_log_tail),
        pair(commands.LINK, link_file),
        pair(commands.UNPACK, unpack_release),
        pair(commands.UNPACK_CACHE, unpack_cache),
    )
)


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
    sys.stdout.write(f"\n@@{nonce} {to_json(answer)}\n")
    return 0


def answer_command(command: str, request: Any) -> dict[str, Any]:
    """Carry out one command; return what is answered."""
    try:
        return {"ok": HANDLERS[command](COMMANDS[command].request(**request))}
    except Exception as error:
        return failure_answer(error)


def failure_answer(error: Exception) -> dict[str, Any]:
    """Return the answer that reports an error."""
    if isinstance(error, CommandFailed):
        return {"failed": str(error), "kind": error.kind}
    return {"failed": f"{type(error).__name__}: {error}", "kind": "disk" if isinstance(error, OSError) else "failed"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
