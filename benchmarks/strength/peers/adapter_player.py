"""A player that chooses its moves through an adapter."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from benchmarks.strength.peers.adapter import Positions
from keima.games.game import Actions, States


class AdapterPlayer:
    """Chooses moves by processes of an adapter, which divide the positions among them.

    Args:
        line: the adapter's command line.
        log: what the processes report goes there.
    """

    def __init__(self, line: Sequence[str], *, processes: int, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("a") as file:
            self._processes = [
                subprocess.Popen(
                    line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
                )
                for _ in range(processes)
            ]

    def ask(self, positions: Positions) -> dict[str, list[int]]:
        """Return the columns chosen in these positions, by "search" and by "policy".

        Raises:
            ChildProcessError: the adapter has failed.
        """
        used = self._processes[: len(positions)]
        parts = [positions[place :: len(used)] for place in range(len(used))]
        for process, part in zip(used, parts, strict=True):
            with suppress(BrokenPipeError):  # it has failed
                print(json.dumps(part), file=_pipe(process.stdin), flush=True)
        chosen = {way: [0] * len(positions) for way in ("search", "policy")}
        for place, process in enumerate(used):
            answer = json.loads(_pipe(process.stdout).readline() or "null")
            if answer is None:
                raise ChildProcessError(f"the adapter has failed: see {self._log}")
            for way, columns in chosen.items():
                columns[place :: len(used)] = answer[way]
        return chosen

    def choose(self, states: States) -> Actions:
        """Raise a ValueError: the moves of each game are needed."""
        raise ValueError("an adapter needs the moves of each game so far")

    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Return the moves of its search in ``states``, which came from the start of the game by these ``moves``."""
        return np.array(self.ask(moves)["search"], np.int32)

    def __enter__(self) -> Self:
        """Return the player."""
        return self

    def __exit__(self, *what: object) -> None:
        """End its processes."""
        for process in self._processes:
            process.kill()
            process.wait()
            with suppress(BrokenPipeError):
                _pipe(process.stdin).close()
            _pipe(process.stdout).close()


def _pipe(stream: IO[Any] | None) -> IO[Any]:
    assert stream is not None
    return stream
