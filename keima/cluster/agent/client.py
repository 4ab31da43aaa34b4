"""The main node's end of the agent: commands to a machine over one kept channel (``keima/cluster/agent/serve.py``).

Nothing that comes from the machine is trusted. Every wait and every size is bounded. An agent that has ended is begun
again, and what it was asked is asked again, since every command may be repeated. From one that does not answer, or
answers what it cannot, the machine is disconnected.
"""

import itertools
import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from keima.base.reports.text import printable_line
from keima.cluster.agent.commands import POLL, Command, to_json
from keima.cluster.agent.packing import PYTHON, install_remote_program, launch_command, remote_program
from keima.cluster.agent.serve import DIGITS
from keima.cluster.ssh.errors import ClusterError, RemoteFailure, Unreachable
from keima.cluster.ssh.transport import Completed, Entry, Stream, StreamEnded, Transport

OPEN_SECONDS = 20.0  # for a busy machine to start Python twice
PROGRESS_SECONDS = 5.0  # for more of an answer that has begun ...
MOST_SECONDS = 120.0  # ... and for all of it, on a slow link
MEANWHILE_SECONDS = 0.2  # between two calls of ``meanwhile`` while a command is carried out
MOST_NOISE = 2**20  # bytes that a shell may print before the first frame
MOST_TEXT = 16 * 2**20  # bytes of an answer's text ...
MOST_DATA = 16 * 2**20  # ... and of the bytes after it
SAID = 300  # characters of a shell's text in a message
LOG_IN = "log in there by ssh and check how its shell runs commands"

Q = TypeVar("Q")
Reply = tuple[dict[str, Any], bytes]  # an answer, and the bytes after it


class AgentConnection:
    """An agent's answers, as they come over its stream.

    Args:
        stream: of an agent that has just begun.
        nonce: that its frames begin with.
        worker: the machine's name.
    """

    def __init__(self, stream: Stream, nonce: str, worker: str) -> None:
        self._stream, self._worker = stream, worker
        self._frame_mark = f"@@{nonce} ".encode()
        self._head = len(self._frame_mark) + 2 * DIGITS
        self._buffer = bytearray()
        self._greeted = False
        self._waiting: set[int] = set()
        self._unwanted: set[int] = set()
        self._replies: dict[int, Reply] = {}

    def read_greeting(self, seconds: float) -> dict[str, Any]:
        """Return its first message, after anything that a shell prints: its ``program``, or why it did not begin.

        Raises:
            StreamEnded: it ended without a word.
            Unreachable: it does not answer.
        """
        deadline = time.monotonic() + seconds
        while (found := self._parse_greeting()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or len(self._buffer) > MOST_NOISE:
                raise Unreachable(
                    self._worker, f"its agent has not answered after {seconds:g} s{self.unexpected_output}"
                )
            self._buffer += self._stream.receive(left)
        self._greeted = True
        return found

    @property
    def unexpected_output(self) -> str:
        """The output that came instead of an answer, for an error message."""
        said = printable_line(self._buffer[-SAID:].decode("utf-8", "replace"))
        return f", but its shell said: {said}" if said else ""

    def send_request(self, number: int, command: str, request: Any) -> None:
        """Send a request, to be answered under this number.

        Raises:
            StreamEnded, Unreachable: it did not arrive.
        """
        text = to_json([number, command, request]).encode()
        self._stream.send(self._frame_mark + f"{len(text):08x}{0:08x}".encode() + text)
        self._waiting.add(number)

    def wait_for_reply(self, number: int, seconds: float) -> Reply | None:
        """Return the answer to a request; None if it has not begun to come within ``seconds``.

        Raises:
            StreamEnded: the agent has ended.
            Unreachable: the connection was lost, or what came makes no sense.
        """
        if number not in self._waiting and number not in self._replies:
            raise StreamEnded(self._worker, "the agent ended before it answered")
        began = time.monotonic()
        deadline = began + seconds
        self._receive_chunk(b"")  # what came with the first frame
        while number not in self._replies:
            left = deadline - time.monotonic()
            if chunk := self._stream.receive(max(0.0, left)):
                self._receive_chunk(chunk)
                if self._buffer and seconds:
                    deadline = min(max(deadline, time.monotonic() + PROGRESS_SECONDS), began + seconds + MOST_SECONDS)
            elif left <= 0:
                return None
        return self._replies.pop(number)

    def discard_reply(self, number: int) -> None:
        """Drop the answer to a request, whenever it comes; it must not be asked for any more."""
        if self._replies.pop(number, None) is None:
            self._unwanted |= self._waiting & {number}

    def close(self) -> None:
        """Close its input: it then exits."""
        self._stream.close()

    def _parse_greeting(self) -> dict[str, Any] | None:
        """Return the first frame, or the line that the launching shell prints in its place."""
        start = self._buffer.find(self._frame_mark)
        if start < 0:
            return None
        del self._buffer[:start]
        if self._buffer[len(self._frame_mark) : len(self._frame_mark) + 1] == b"{":
            line, ended, _ = bytes(self._buffer).partition(b"\n")
            found = self._parse_json(line[len(self._frame_mark) :]) if ended else None
        else:
            frame = self._next_frame()
            found = frame[0] if frame else None
        return self._checked_dict(found) if found is not None else None

    def _receive_chunk(self, chunk: bytes) -> None:
        self._buffer += chunk
        while (frame := self._next_frame()) is not None:
            text, data = frame
            if not (isinstance(text, list) and len(text) == 2 and text[0] in self._waiting):
                raise self._protocol_error("an answer to a request that was never sent")
            self._waiting.discard(text[0])
            if text[0] in self._unwanted:
                self._unwanted.discard(text[0])
            else:
                self._replies[text[0]] = (self._checked_dict(text[1]), data)

    def _next_frame(self) -> tuple[Any, bytes] | None:
        """Return text and bytes of the next frame; None if it is not complete."""
        if not self._buffer.startswith(self._frame_mark[: len(self._buffer)]):
            raise self._protocol_error("no frame")
        if len(self._buffer) < self._head:
            return None
        try:
            sizes = self._buffer[len(self._frame_mark) : self._head]
            text, data = int(sizes[:DIGITS], 16), int(sizes[DIGITS:], 16)
        except ValueError:
            raise self._protocol_error("no frame") from None
        if not (0 <= text <= MOST_TEXT and 0 <= data <= MOST_DATA):
            raise self._protocol_error(f"a frame of {text + data:,} bytes")
        end = self._head + text + data
        if len(self._buffer) < end:
            return None
        parsed = self._parse_json(bytes(self._buffer[self._head : self._head + text]))
        content = bytes(self._buffer[self._head + text : end])
        del self._buffer[:end]
        return parsed, content

    def _parse_json(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise self._protocol_error("no JSON") from None

    def _checked_dict(self, found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self._protocol_error("no answer")
        return found

    def _protocol_error(self, what: str) -> Unreachable:
        return Unreachable(self._worker, f"its agent sent an invalid answer: {what}")


class AgentTransport:
    """A transport with an agent, which is begun when it is first needed. It is a ``Transport``.

    Args:
        inner: the transport to the machine.
        python: the interpreter to try first.

    Attributes:
        running: by the place of each worker, whether its recorded process runs, as the last poll has shown; None: there
            is no record.
    """

    def __init__(self, inner: Transport, *, python: str = PYTHON) -> None:
        self.worker = inner.worker
        self.running: dict[str, bool | None] = {}
        self._inner, self._python = inner, python
        self._agent: AgentConnection | None = None
        self._numbers = itertools.count()
        self._sent = self._received = 0  # bytes of files, by the agent

    def ask_agent(self, command: Command[Q, Any], request: Q, *, seconds: float) -> Reply:
        """Return the answer to a command, as ``program.py`` prints it, and the bytes of files.

        Meanwhile, ``meanwhile`` is called again and again, except during a poll.

        Raises:
            ClusterError: there is none within ``seconds``.
        """
        try:
            try:
                return self._exchange(command, request, seconds)
            except StreamEnded:
                self._end_agent()
                return self._exchange(command, request, seconds)
        except _AgentNotStarted as error:
            return error.answer, b""

    def post_request(self, command: Command[Q, Any], request: Q) -> int:
        """Ask without waiting; return the request's number.

        Raises:
            ClusterError: it could not be sent, or there is no agent at the moment.
        """
        number = next(self._numbers)
        self._running_agent().send_request(number, command.name, request)
        return number

    def check_for_reply(self, number: int) -> Reply | None:
        """Return the answer to what was posted, if it has come.

        Raises:
            ClusterError: it will not come.
        """
        return self._running_agent().wait_for_reply(number, 0.0)

    def discard_reply(self, number: int) -> None:
        """Forget what was posted."""
        if self._agent:
            self._agent.discard_reply(number)

    def count_bytes(self, *, sent: int = 0, received: int = 0) -> None:
        """Count bytes of files that the agent has carried."""
        self._sent += sent
        self._received += received

    def _exchange(self, command: Command[Q, Any], request: Q, seconds: float) -> Reply:
        agent = self._open_agent()
        number, deadline = self.post_request(command, request), time.monotonic() + seconds
        while (reply := agent.wait_for_reply(number, seconds if command is POLL else MEANWHILE_SECONDS)) is None:
            if time.monotonic() >= deadline:
                self.close()
                raise Unreachable(self.worker, f"{command.name} has not been answered after {seconds:g} s")
            self._inner.meanwhile()
        return reply

    def _running_agent(self) -> AgentConnection:
        if self._agent is None:
            raise StreamEnded(self.worker, "no agent runs")
        return self._agent

    def _open_agent(self) -> AgentConnection:
        """Return the agent, which is begun if there is none; the program is put there first if it is missing.

        Raises:
            ClusterError: it cannot be begun.
        """
        if self._agent is None:
            self._agent = self._start_agent() or self._start_agent(install=True)
        assert self._agent is not None
        return self._agent

    def _start_agent(self, *, install: bool = False) -> AgentConnection | None:
        """Return a new agent; None if its program is not there."""
        if install:
            install_remote_program(self._inner)
        nonce = secrets.token_hex(8)
        stream = self._inner.open(launch_command(nonce, "serve", "", python=self._python))
        agent = AgentConnection(stream, nonce, self.worker)
        try:
            found = agent.read_greeting(OPEN_SECONDS)
            if found.get("kind") == "absent" and not install:
                agent.close()
                return None
            self._check_version(found)
        except StreamEnded as error:
            agent.close()
            self._inner.run(["true"])  # says what is wrong with the folder, if that is it
            raise RemoteFailure(self.worker, f"its agent ended immediately{agent.unexpected_output}", LOG_IN) from error
        except BaseException:
            agent.close()
            raise
        return agent

    def _check_version(self, found: dict[str, Any]) -> None:
        """Accept only the program that was meant."""
        if "program" not in found:
            raise _AgentNotStarted(self.worker, found)
        if found["program"] != remote_program()[1].rpartition("/")[2]:
            raise Unreachable(self.worker, "its agent has another version")

    def _end_agent(self) -> None:
        if self._agent:
            agent, self._agent = self._agent, None
            with suppress(ClusterError, OSError):
                agent.close()

    # Files and single programs go as without an agent.

    @property
    def sent(self) -> int:
        """See ``Transport``."""
        return self._inner.sent + self._sent

    @property
    def received(self) -> int:
        """See ``Transport``."""
        return self._inner.received + self._received

    @property
    def meanwhile(self) -> Callable[[], None]:
        """See ``Transport``; also called while a command is carried out."""
        return self._inner.meanwhile

    @meanwhile.setter
    def meanwhile(self, call: Callable[[], None]) -> None:
        self._inner.meanwhile = call

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """See ``Transport``."""
        self._inner.put(data, name, durable=durable)

    def get(self, name: str, limit: int) -> bytes:
        """See ``Transport``."""
        return self._inner.get(name, limit)

    def list_files(self, folder: str) -> list[Entry]:
        """See ``Transport``."""
        return self._inner.list_files(folder)

    def remove(self, name: str) -> None:
        """See ``Transport``."""
        self._inner.remove(name)

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """See ``Transport``."""
        return self._inner.run(argv, seconds=seconds)

    def open(self, argv: Sequence[str]) -> Stream:
        """See ``Transport``."""
        return self._inner.open(argv)

    def close(self) -> None:
        """See ``Transport``."""
        self._end_agent()
        self._inner.close()


class _AgentNotStarted(RemoteFailure):
    """The agent could not be begun; ``answer`` says why, as ``program.py`` prints it."""

    def __init__(self, worker: str, answer: dict[str, Any]) -> None:
        super().__init__(worker, "its agent cannot be started")
        self.answer = answer
