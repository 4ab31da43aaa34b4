"""The benchmark of one-player games: a network, and players to measure it by, each plays many games for the score.

The games of a contender are cut into slices, one a process. What nature draws in a game follows from the seed and the number of the
game; a network's answers may differ in the last digit with the number of positions in a batch, and so its moves with that of processes.
"""

import itertools
import math
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from pydantic import ValidationError

from games import CHANCE, Game
from games.game import States
from training.evaluation.score import SIDE_BY_SIDE, ScoredGames, summary
from training.evaluation.score_slice import Contender, ExpectimaxPlayer, Job, Line
from training.model_file import Model, describe_model
from training.reports import ScoreReport
from training.resnet import HEAD_CHANNELS

PROJECT = Path(__file__).resolve().parents[2]
DEEPEST = 4  # of expectimax, when its depth follows from the time
PROBES = 40  # positions on which that time is measured
LAST_WORDS = 2000  # characters of a failed process

Tell = Callable[[int, int], None]  # (games that have ended, moves made)


class SliceFailed(RuntimeError):
    """A process that played has failed; the text has its last words."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The games of a contender."""

    name: str
    games: ScoredGames
    report: ScoreReport
    move_seconds: float  # of one processor, or of the clock where a GPU works
    seconds: float  # until all processes were done

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        report = {key: value for key, value in vars(self.report).items() if key != "milestones"}
        games = {key: getattr(self.games, key).tolist() for key in ("scores", "reached", "plies")}
        milestones = [vars(part) for part in self.report.milestones]
        return {"name": self.name, "seconds": self.seconds, "move_seconds": self.move_seconds} | report | {"milestones": milestones} | games


def play_contender(
    game: Game, name: str, contender: Contender, *, games: int, seed: int, processes: int, tell: Tell = lambda ended, moves: None
) -> Result:
    """Let a contender play ``games`` games in so many processes.

    Raises:
        SliceFailed: a process ended before its games did.
    """
    started = time.monotonic()
    bounds = np.linspace(0, games, min(processes, games) + 1).astype(int).tolist()
    jobs = [
        Job(game=game.name, options=game.options, contender=contender, games=last - first, first=first, seed=seed)
        for first, last in itertools.pairwise(bounds)
    ]
    parts = play_jobs(jobs, tell)
    played = ScoredGames(
        scores=np.array([score for part in parts for score in part.scores]),
        reached=np.array([reached for part in parts for reached in part.reached]),
        plies=np.array([plies for part in parts for plies in part.plies]),
        moves=sum(part.moves for part in parts),
    )
    report = summary(game, played)
    assert report is not None
    move_seconds = sum(part.seconds for part in parts) / max(1, played.moves)
    return Result(name=name, games=played, report=report, move_seconds=move_seconds, seconds=time.monotonic() - started)


def play_jobs(jobs: Sequence[Job], tell: Tell) -> list[Line]:
    """Play all jobs side by side; returns the last line of each.

    Raises:
        SliceFailed: a process ended before its games did.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        children = [stack.enter_context(_Child(job)) for job in jobs]
        for child in children:
            selector.register(child.output, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.listen():
                    selector.unregister(key.fileobj)
            tell(sum(child.line.ended for child in children), sum(child.line.moves for child in children))
        return [child.line for child in children]


class _Child:
    """A process that plays a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.line = Line(ended=0, moves=0)
        self._text = b""

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "training.evaluation.score_slice"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=PROJECT, stdin=pipe, stdout=pipe, stderr=self._errors)
        assert self._process.stdin and self._process.stdout
        self.output = self._process.stdout
        self._process.stdin.write(self._job.model_dump_json().encode())
        self._process.stdin.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self.output.close()
        self._errors.close()

    def listen(self) -> bool:
        """Read what it has said; False when it has said all.

        Raises:
            SliceFailed: it has ended before its games did.
        """
        data = os.read(self.output.fileno(), 2**16)
        *lines, self._text = (self._text + data).split(b"\n")
        try:
            for line in lines:
                self.line = Line.model_validate_json(line)
        except ValidationError as error:
            raise SliceFailed(f"a process said what cannot be understood: {error}") from error
        if not data and (self._process.wait() != 0 or len(self.line.scores) != self._job.games):
            raise SliceFailed(f"a process that played has failed: {self._last_words()}")
        return bool(data)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-LAST_WORDS:].decode(errors="replace").strip() or f"exit code {self._process.returncode}"


def depth_for(game: Game, seconds: float) -> int:
    """The greatest depth of expectimax at which a move takes no longer than so many seconds, 0 at least."""
    positions = some_positions(game)
    depth = 0
    while depth < DEEPEST and time_a_move(positions, depth + 1) <= seconds:
        depth += 1
    return depth


def some_positions(game: Game) -> list[States]:
    """Positions from games that expectimax plays at a glance, far enough on for the board to be as full as it usually is."""
    random, player, state = np.random.default_rng(0), ExpectimaxPlayer(0), game.initial_state()
    positions: list[States] = []
    while len(positions) < PROBES:
        if game.terminal(state):
            state = game.initial_state()
        elif game.current_player(state) == CHANCE:
            outcomes, chances = game.chance_outcomes(state)
            game.play(state, int(random.choice(outcomes, p=chances / chances.sum())))
        else:
            if random.random() < 1 / SIDE_BY_SIDE:
                positions.append(state.copy())
            game.play(state, int(player.choose(state[None])[0]))
    return positions


def time_a_move(positions: Iterable[States], depth: int) -> float:
    """Seconds of the processor that a move takes, on average."""
    player, states = ExpectimaxPlayer(depth), np.stack(list(positions))
    player.choose(states[:1])
    started = time.process_time()
    player.choose(states)
    return (time.process_time() - started) / len(states)


def model_of_weights(game: Game, weights: Mapping[str, Any]) -> Model:
    """A state dictionary of a network for ``game`` as a model; what network it is, is read off the shapes.

    Raises:
        ValueError: it is none of ours, or not for this game.
    """
    try:
        filters, planes = weights["stem.conv.weight"].shape[:2]
        cells = weights["policy.others.weight"].shape[1] // HEAD_CHANNELS
    except (KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"it is no state dictionary of a network for {game.name}: {error!r} is missing") from error
    shape = (game.observation_shape[0], math.prod(game.observation_shape[1:]))
    if (planes, cells) != shape:
        raise ValueError(
            f"it is a network for {planes} planes of {cells} cells, and {game.name} {game.options} has {shape[0]} of {shape[1]}"
        )
    network = {
        "type": "resnet",
        "blocks": len({name.split(".")[1] for name in weights if name.startswith("tower.")}),
        "channels": int(filters),
        "global_pooling": "policy.bias.weight" in weights,
    }
    model = Model(description=describe_model(game, network, 0), weights=dict(weights))
    model.build(game)
    return model
