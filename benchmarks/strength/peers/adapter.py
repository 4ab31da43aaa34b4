"""What the adapters of peers share: their two commands, the end of their time, and the exchange with compare.py.

An adapter is a program that runs in its peer's own environment. Neither it nor this module imports Keima; Keima's own
adapter, which runs in Keima's, is the exception.

    ADAPTER train FOLDER                  train as FOLDER/task.json says, and leave checkpoints and FOLDER/trained.json
    ADAPTER choose FOLDER SIMULATIONS     choose moves with what was trained there

*train* ends after the task's minutes, which begin with its process: starting and compiling are part of a peer's work.

*choose* reads lines from its standard input and answers each with one. A line is a list of positions in JSON, and a
position the list of the columns, 0 to 6, that were played to it. The answer is {"search": [...], "policy": [...]}: the
columns chosen by the peer's own search with so many simulations, and by its network's policy alone.
"""

import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

BEGAN = time.monotonic()
TASK, TRAINED = "task.json", "trained.json"

Positions = Sequence[Sequence[int]]  # each as the columns played to it
Choose = Callable[[Positions], tuple[list[int], list[int]]]  # the columns by search, and by the policy alone


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to train."""

    minutes: float
    seed: int
    settings: str  # the name of a set of the peer's settings
    cores: int


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training has done.

    Attributes:
        evaluations: positions that the network evaluated in self-play; None: the peer cannot tell.
        seconds: of wall-clock time; from the start of its process until now, unless given.
    """

    games: int
    positions: int
    evaluations: int | None
    seconds: float = field(default_factory=lambda: time.monotonic() - BEGAN)


def read_task(folder: Path) -> Task:
    """Read the task of a folder."""
    return Task(**json.loads((folder / TASK).read_text(encoding="utf-8")))


def write_task(folder: Path, task: Task) -> None:
    """Write the task of a folder, which is made."""
    folder.mkdir(parents=True)
    write_json(folder / TASK, asdict(task))


def read_trained(folder: Path) -> Trained | None:
    """Read what a training has done; None: it has not ended."""
    path = folder / TRAINED
    return Trained(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def write_trained(folder: Path, trained: Trained) -> None:
    """Write what a training has done, which ends it."""
    write_json(folder / TRAINED, asdict(trained))


def write_json(path: Path, content: object) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"{json.dumps(content)}\n", encoding="utf-8")
    part.replace(path)


def end_on_time(folder: Path, task: Task, count: Callable[[], Trained]) -> None:
    """Let this process end with its children when its minutes are over, whatever it does then.

    Args:
        count: returns what was done by then.
    """

    def end() -> None:
        try:
            write_trained(folder, count())
        except BaseException:
            traceback.print_exc()
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(0 if (folder / TRAINED).exists() else 1)

    timer = threading.Timer(max(0.0, 60 * task.minutes - (time.monotonic() - BEGAN)), end)
    timer.daemon = True
    timer.start()


def answer_requests(choose: Choose, requests: TextIO, answers: TextIO) -> None:
    """Answer requests for moves until there are no more."""
    for line in requests:
        search, policy = choose(json.loads(line))
        print(json.dumps({"search": search, "policy": policy}), file=answers, flush=True)


def run_adapter(
    train: Callable[[Path, Task], None], make_player: Callable[[Path, Task, int], Choose], words: Sequence[str]
) -> None:
    """Obey the command line of an adapter.

    Args:
        train: in this folder.
        make_player: from what was trained in this folder; it searches with so many simulations.
        words: of the command line.
    """
    command, folder = words[0], Path(words[1]).resolve()
    task = read_task(folder)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.cores])
    if command == "train":
        train(folder, task)
        return
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a peer prints is no answer
    answer_requests(make_player(folder, task, int(words[2])), sys.stdin, answers)
