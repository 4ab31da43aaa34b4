"""Calls of a machine's agent. Here alone the main node reads and checks what a machine answers.

Each call is one command of bounded duration. Over an ``AgentTransport`` all calls share one process there and one
channel; over any other transport each starts the agent's program once.
"""

import functools
import json
import re
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from keima.cluster.agent.client import LOG_IN, AgentTransport
from keima.cluster.agent.commands import MOST_TEXT, Command, printable_start, to_json
from keima.cluster.agent.packing import PYTHON, PYTHONS, VENV_PYTHON, install_remote_program, launch_command
from keima.cluster.ssh.errors import Refused, RemoteFailure
from keima.cluster.ssh.transport import REMEDIES, Completed, Transport

CALL_SECONDS = 8.0
# Answers of a machine on which our program has not run, so that it has not read and deleted the request.
UNREAD = ("absent", "pythonless", "system")
ERROR_NUMBER = re.compile(r"\[Errno (\d{1,4})\]")  # as Python writes it in file errors

Q = TypeVar("Q")
A = TypeVar("A")


def call_remote(
    transport: Transport,
    command: Command[Q, A],
    request: Q,
    *,
    python: str = PYTHON,
    seconds: float = CALL_SECONDS,
    private: bool = False,
) -> A:
    """Carry out one command on a machine; return its answer. The agent's program is put there first if it is missing.

    Over an ``AgentTransport``, the running agent carries it out, whatever ``python`` and ``private`` say.

    Args:
        transport: to the machine.
        command: the command.
        request: what it is to do.
        python: the interpreter to try first.
        seconds: the time limit.
        private: whether to hide the request from other users of the machine, who can list its processes.

    Raises:
        Unreachable: the machine is gone, or did not answer within ``seconds``.
        Refused: nothing there can run our program.
        RemoteFailure: the command failed, or its answer makes no sense; the text says why.
    """
    answer = _ask_remote(transport, command, request, python, seconds, private)
    if answer.get("kind") == "absent":
        install_remote_program(transport)
        answer = _ask_remote(transport, command, request, python, seconds, private)
    return read_answer(transport.worker, command, answer, python=python, place=getattr(request, "place", ""))


def read_answer(
    worker: str, command: Command[Any, A], answer: dict[str, Any], *, python: str = PYTHON, place: str = ""
) -> A:
    """Return the result in what the agent of ``worker`` has answered to a command, checked against its type.

    Raises:
        Refused, RemoteFailure: as ``call_remote``.
    """
    if "ok" in answer:
        return check_value(worker, command.answer, answer["ok"])
    kind, text = str(answer.get("kind")), printable_start(str(answer.get("failed")))
    if kind == "pythonless":
        names = " nor ".join(dict.fromkeys([python, VENV_PYTHON, *PYTHONS]))
        what = f"no working Python found: tried {names}"
        raise Refused(worker, what, "install Python 3.11 or newer there")
    if kind == "system":
        name = {"Darwin": "macOS"}.get(text, text)
        raise Refused(
            worker, f"it runs {name}, and a worker needs Linux", "use a Linux machine, or a virtual one on it"
        )
    if kind == "elsewhere":
        remedy = (
            "give each of them a `directory` of its own in the config; or, if that process no longer exists, "
            f"remove {place}/process.json there"
        )
        raise RemoteFailure(worker, text, remedy)
    if kind == "python":
        raise Refused(worker, text, "repair it, or name another with `python:` in the config")
    raise RemoteFailure(worker, f"{command.name}: {text}", disk_remedy(text))


def disk_remedy(text: str) -> str:
    """Return what to do about a file error of the remote program, from its number; empty for other failures."""
    found = ERROR_NUMBER.search(text)
    return REMEDIES.get(int(found[1]), "") if found else ""


def _ask_remote(
    transport: Transport, command: Command[Q, Any], request: Q, python: str, seconds: float, private: bool
) -> dict[str, Any]:
    if isinstance(transport, AgentTransport):
        return transport.ask_agent(command, request, seconds=seconds)[0]
    nonce = secrets.token_hex(8)
    text, name = to_json(request), f".remote/requests/{nonce}.json"
    if private:
        transport.put(text.encode(), name)
        text = json.dumps({"request": name})
    done = transport.run(launch_command(nonce, command.name, text, python=python), seconds=seconds)
    answer = find_answer(transport.worker, done, nonce)
    if private and answer.get("kind") in UNREAD:
        transport.remove(name)
    return answer


def find_answer(worker: str, done: Completed, nonce: str) -> dict[str, Any]:
    """Return the answer to the request ``nonce`` from output in which a login shell may print anything else.

    Raises:
        RemoteFailure: there is none.
    """
    mark = f"@@{nonce} ".encode()
    lines = [line[len(mark) :] for line in done.stdout.splitlines() if line.startswith(mark)]
    try:
        answer = json.loads(lines[-1])
        if isinstance(answer, dict):
            return answer
    except (IndexError, ValueError, RecursionError):
        pass
    said = printable_start((done.stderr or done.stdout)[-MOST_TEXT:].decode("utf-8", "replace"))[-300:] or "nothing"
    raise RemoteFailure(worker, f"a command gave no answer; it ended with {done.code} and printed: {said}", LOG_IN)


def check_value(worker: str, kind: Callable[..., A], found: Any) -> A:
    """Return what came from a machine as a ``kind``, if it is one.

    Raises:
        RemoteFailure: it is not.
    """
    try:
        checked: A = _make_adapter(kind).validate_python(found)
    except ValidationError as error:
        raise RemoteFailure(worker, f"an answer is invalid: {printable_start(str(error))[:300]}") from error
    return checked


@functools.cache
def _make_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
