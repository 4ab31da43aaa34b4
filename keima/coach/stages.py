"""The stages of a run that begins on smaller boards (``game.smaller``).

Each smaller board is a run of its own, in a folder within the run's; its averaged weights are the first ones of the
next. The last stage is the run itself. One clock runs through all of them: each begins with the minutes of those before
it, so ``run.minutes`` bounds the whole, and schedules by shares of the run go on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from keima.base.files import write_atomically
from keima.base.run_folder import SMALLER_BOARDS
from keima.coach.opening import CHECKPOINTS, repeatable_run_id
from keima.coach.session import require_sound_game
from keima.config.load import save_resolved
from keima.config.schema import Settings
from keima.config.sections.game import SmallerBoard
from keima.config.sections.network import NetworkSettings
from keima.data.ledger import open_ledger
from keima.games import Game, load_game
from keima.learning.checkpoint import Checkpoints
from keima.networks.growth import check_is_larger
from keima.networks.network import build_network


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a run, on one board."""

    folder: Path
    settings: Settings
    run_minutes: float | None = None  # of the whole run, by which schedules go
    news: str = ""  # what people are told when it begins

    @property
    def has_begun(self) -> bool:
        """Whether it has weights of its own, so that the stages before it are finished."""
        return bool(Checkpoints(self.folder / CHECKPOINTS).paths())


def stages_left(run_dir: Path, settings: Settings) -> list[Stage]:
    """Return the stages of a run that are not finished, the one under way first; the last is the run itself, in
    ``run_dir``.
    """
    minutes, boards = settings.run.minutes, settings.game.boards
    own = Stage(folder=run_dir, settings=settings, run_minutes=minutes)
    if own.has_begun or not boards:
        return [own]
    stages = []
    for board, following in zip(boards, [*(board.name for board in boards[1:]), "its own board"], strict=True):
        folder = run_dir / SMALLER_BOARDS / _file_name(board)
        stage = Stage(folder=folder, settings=_settings_for(board, settings), run_minutes=minutes)
        news = (
            f"the game has {board.name} until {stage.settings.run.minutes:.3g} minutes of the run have passed, then "
            f"{following}"
        )
        stages.append(replace(stage, news=news))
    begun = [number for number, stage in enumerate(stages) if stage.has_begun]
    news = f"the game has its own board from now on, and the network goes on from {boards[-1].name}"
    return [*stages[begun[-1] if begun else 0 :], replace(own, news=news)]


def _file_name(board: SmallerBoard) -> str:
    return board.name.replace("=", "-").replace(" ", "_")


def _settings_for(board: SmallerBoard, settings: Settings) -> Settings:
    """Return the settings of the stage on this board. Strength is measured on the run's own board alone."""
    changes: dict[str, dict[str, Any]] = {
        "run": {
            "name": f"{settings.run.name[:40]}-{_file_name(board)}"[:64],  # another id than the run's own
            "iterations": None,
            "minutes": board.share * (settings.run.minutes or 0.0),  # which are given where there are smaller boards
        },
        "game": {"options": settings.game.options | board.options, "smaller": ()},
        "network": {"growth": ()},
        "training": {"window": settings.training.window.model_copy(update={"seed_games": ()})},
        "evaluation": {"every": 0},
    }
    sections = {name: getattr(settings, name).model_copy(update=update) for name, update in changes.items()}
    return settings.model_copy(update=sections)


def check_stages(stages: Sequence[Stage]) -> None:
    """Check that the game has all boards, in ascending order, and that one network fits them.

    Raises:
        ValueError: it does not; the message says why.
    """
    games = [load_game(stage.settings.game.name, **stage.settings.game.options) for stage in stages]
    arguments = stages[-1].settings.network.arguments()
    for smaller, larger in pairwise(games):
        if smaller.height * smaller.width >= larger.height * larger.width:
            raise ValueError(
                f"each board must be smaller than the next, but {_size(larger)} points follow {_size(smaller)}"
            )
        if reason := explain_misfit(smaller, larger, arguments):
            raise ValueError(f"one network cannot learn both {_size(smaller)} and {_size(larger)} points: {reason}")
    for stage in stages:
        require_sound_game(stage.settings)


def check_growth(game: Game, network: NetworkSettings) -> None:
    """Check that each size of the network can become the next: a wider block that pools may need fewer channels that
    do not.

    Raises:
        ValueError: one cannot; the message says why.
    """
    networks = [build_network(game, **network.arguments(steps)) for steps in range(len(network.sizes))]
    for (before, smaller), (after, larger) in pairwise(zip(network.sizes, networks, strict=True)):
        try:
            check_is_larger(smaller.state_dict(), larger)
        except ValueError as error:
            raise ValueError(
                f"{before.blocks}x{before.channels} cannot become {after.blocks}x{after.channels}: {error}"
            ) from error


def explain_misfit(smaller: Game, larger: Game, arguments: Mapping[str, Any]) -> str:
    """Return why a network of ``build_network(game, **arguments)`` cannot go on with the larger board; empty if it can.

    It can if the parameters and buffers of both networks have the same shapes, and values the same meaning.
    """
    if smaller.observation_shape[0] != larger.observation_shape[0]:
        planes = smaller.observation_shape[0], larger.observation_shape[0]
        return "the observations have {} and {} planes".format(*planes)
    if larger.num_players == 1 and smaller.max_return != larger.max_return:
        return f"the network's values are shares of the highest score, {smaller.max_return:g} and {larger.max_return:g}"
    before, after = (
        {name: tuple(tensor.shape) for name, tensor in build_network(game, **arguments).state_dict().items()}
        for game in (smaller, larger)
    )
    if before == after:
        return ""
    if larger.policy_planes == 0:
        return "the game's moves are not points of its board, so the network has weights for each move and point"
    name = next(name for name in before | after if before.get(name) != after.get(name))
    return f"its weights depend on the board's size: {name} has {before.get(name)} and {after.get(name)} numbers"


def _size(game: Game) -> str:
    return f"{game.height} x {game.width}"


def begin_run_folder(run: Stage) -> None:
    """Write the settings and an empty ledger, so that the run can be resumed while it is on a smaller board.

    The caller holds the run's lock.

    Raises:
        OSError, LedgerMismatch, LedgerDamaged: the folder cannot be written, or holds another run.
    """
    # With the options that are given: a smaller board has other ones where they follow from the size, such as Go's
    # longest game.
    save_resolved(run.settings, run.folder, write=write_atomically)
    game = load_game(run.settings.game.name, **run.settings.game.options)
    open_ledger(run.folder, game, run_id=repeatable_run_id(run.settings)).close()
