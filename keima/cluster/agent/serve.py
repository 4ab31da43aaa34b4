"""The agent: it answers the main node's requests over one kept connection, as long as that lasts.

    python3 -I .remote/<hash>.pyz NONCE serve ""

Requests come on standard input and answers go to standard output, both in frames: ``@@NONCE`` and a space, the length
of a JSON text and of the bytes after it as eight hexadecimal digits each, the text, the bytes. The first frame says
which program this is. A request is ``[number, command, arguments]`` and its answer ``[number, answer]``, with the
answer that ``program.py`` prints. Polls are answered at once. Every other command has a process of its own, so that
a slow one delays nothing; its answer comes when it is done.

The agent ends with its input; ``IDLE_SECONDS`` after the last request or answer, since a lost connection may not show;
and if its folder is no longer there.

Like all of this folder, it runs on a worker's machine before anything is installed: standard library only.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keima.cluster.agent.commands import POLL, PollRequest, to_json
from keima.cluster.agent.poll import answer_poll

IDLE_SECONDS = 60
MOST_TEXT = 16 * 2**20  # bytes of a request
CHUNK = 2**16
DIGITS = 8

Answer = Callable[[str, Any], dict[str, Any]]  # carries out a command


def serve_requests(nonce: str, answer: Answer) -> int:
    """Answer requests until the main node is gone; return the exit code."""
    agent = AgentServer(nonce, answer)
    agent.send_frame({"program": Path(sys.argv[0]).name})
    while agent.step():
        pass
    return 0


class AgentServer:
    """The input that is not processed yet, and the commands in progress."""

    def __init__(self, nonce: str, answer: Answer) -> None:
        self._frame_mark, self._answer = f"@@{nonce} ".encode(), answer
        self._buffer = bytearray()
        self._folder, self._opened = Path.cwd(), Path().stat()
        self._outputs: dict[
            int, tuple[int, bytearray]
        ] = {}  # pipe of a command's process -> its number, its output so far
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        signal.alarm(IDLE_SECONDS)  # ends this process, even if it waits for a main node that reads nothing

    def step(self) -> bool:
        """Wait for input and process it; return whether to continue."""
        for key, _ in self._selector.select():
            chunk = os.read(key.fd, CHUNK)
            if key.fd != 0:
                self._read_pipe(key.fd, chunk)
            elif not chunk or not self._handle_requests(chunk):
                return False
        return True

    def send_frame(self, text: Any, data: bytes = b"") -> None:
        """Send a frame."""
        encoded = to_json(text).encode()
        left = memoryview(self._frame_mark + f"{len(encoded):08x}{len(data):08x}".encode() + encoded + data)
        while left:
            left = left[os.write(1, left) :]

    def _handle_requests(self, chunk: bytes) -> bool:
        """Carry out the requests that are complete; return False if the input is not a frame."""
        self._buffer += chunk
        head = len(self._frame_mark) + 2 * DIGITS
        while len(self._buffer) >= head:
            size = int(self._buffer[len(self._frame_mark) : len(self._frame_mark) + DIGITS], 16)
            if not self._buffer.startswith(self._frame_mark) or size > MOST_TEXT:
                return False
            if len(self._buffer) < head + size:
                break
            number, command, request = json.loads(bytes(self._buffer[head : head + size]))
            del self._buffer[: head + size]
            signal.alarm(IDLE_SECONDS)
            if not self._is_folder_in_place():
                return False
            self._handle_request(number, command, request)
        return True

    def _is_folder_in_place(self) -> bool:
        """Return whether the folder is the one that the main node means, and not one that was deleted or moved."""
        try:
            return os.path.samestat(self._folder.stat(), self._opened)
        except OSError:
            return False

    def _handle_request(self, number: int, command: str, request: Any) -> None:
        if command != POLL.name:
            self._start_command(number, command, request)
            return
        try:
            answer, data = answer_poll(PollRequest(**request))
        except Exception as error:
            self.send_frame([number, {"failed": f"{type(error).__name__}: {error}", "kind": "failed"}])
        else:
            self.send_frame([number, {"ok": answer}], data)

    def _start_command(self, number: int, command: str, request: Any) -> None:
        """Carry out a command in a process of its own, whose output is its answer."""
        ours, theirs = os.pipe()
        if os.fork() == 0:
            try:
                self._selector.close()
                nothing = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(nothing, descriptor)
                with os.fdopen(theirs, "wb") as pipe:
                    pipe.write(to_json(self._answer(command, request)).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        self._outputs[ours] = number, bytearray()
        self._selector.register(ours, selectors.EVENT_READ)

    def _read_pipe(self, pipe: int, chunk: bytes) -> None:
        """Collect the output of a command's process, and send the answer when the process has ended."""
        number, said = self._outputs[pipe]
        said += chunk
        if chunk:
            return
        self._selector.unregister(pipe)
        os.close(pipe)
        del self._outputs[pipe]
        os.wait()
        try:
            answer = json.loads(bytes(said))
        except ValueError:
            answer = {"failed": "the command's process was killed", "kind": "failed"}
        self.send_frame([number, answer])
        signal.alarm(IDLE_SECONDS)
