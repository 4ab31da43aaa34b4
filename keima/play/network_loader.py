"""Loads the network to measure: from a run, a model's file, or a file of weights next to a run's settings."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keima.base.reports.formats import game_title
from keima.base.run_folder import LEDGER_NAME
from keima.config.load import ConfigError, load_settings
from keima.config.own_modules import FOLDER as MODULES
from keima.config.own_modules import keep_copies
from keima.config.sections.network import NetworkSettings
from keima.config.sections.search import SearchSettings
from keima.evaluation.match_worker import describe_match_search
from keima.games import Game, load_game
from keima.networks.files.container import CorruptModel
from keima.networks.files.heading import find_run_model
from keima.networks.files.model import Model, describe_model, save_safetensors
from keima.networks.files.weights_file import load_weights
from keima.paths import SHIPPED
from keima.play.arena.match_benchmark import Entrant
from keima.play.arena.players import NetworkSpec, read_model
from keima.play.arena.score_benchmark import make_model_from_weights

SETTINGS = "config.yaml"  # of a run, in its folder
UNKNOWN_RUN = SearchSettings(algorithm="gumbel")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlayableNetwork:
    """A network, its file, and its search settings."""

    game: Game
    model: Model
    path: Path
    search: SearchSettings

    def spec(self, num_simulations: int, algorithm: str | None) -> NetworkSpec:
        """Return the network as a player; ``algorithm`` overrides its own search."""
        search = self.search.model_copy(update={"algorithm": algorithm}) if algorithm else self.search
        return NetworkSpec(model=self.path.resolve(), search=search, num_simulations=num_simulations)

    def describe(self, player: NetworkSpec) -> str:
        """Return what plays: the game, the model and its search."""
        search = describe_match_search(player.search, player.num_simulations)
        return f"{game_title(self.game.name, self.game.options)}, model {self.model.model_version}, {search}"


def load_network_from_run(run: Path, version: int | None = None) -> PlayableNetwork:
    """Load a run's model, by default the newest that was accepted.

    Raises:
        ValueError, OSError: there is none, or it cannot be read.
    """
    return load_network_from_model(find_run_model(run, version))


def load_network_from_model(path: Path) -> PlayableNetwork:
    """Load the model in a file, with the search settings of its run.

    Raises:
        ValueError, OSError: it is none, or cannot be read.
    """
    model = read_model(path)
    keep_copies(path.parent / MODULES)
    return check_weights_fit(model, path, _find_search_of_run(path.resolve()))


def _find_search_of_run(path: Path) -> SearchSettings:
    """Return the search of the run that a model's file is in, or of the experiment that a shipped model is of."""
    run, config = path.parent.parent, None
    if (run / LEDGER_NAME).exists():
        config = run / SETTINGS
    elif path.parent == (SHIPPED / "models").resolve():
        config = SHIPPED / "configs" / f"{path.stem}.yaml"
    try:
        return load_settings(config).search if config and config.is_file() else UNKNOWN_RUN
    except ConfigError as error:
        log.warning("the search of the network's run is unknown: %s", error)
        return UNKNOWN_RUN


def load_network_at(path: Path) -> PlayableNetwork:
    """Load the newest model of the run in a folder, or the model in a file.

    Raises:
        ValueError, OSError: there is none, or it cannot be read.
    """
    return load_network_from_run(path) if path.is_dir() else load_network_from_model(path)


def load_network_from_weights(path: Path, config: Path | None, folder: Path) -> PlayableNetwork:
    """Load the network in a state dictionary, saved as a model in ``folder``.

    Args:
        path: the file, which holds weights and nothing else.
        config: settings that name the game and the network; by default those next to the file. Without any it can only
            be 2048's network.

    Raises:
        ValueError, OSError: it cannot be read, or it is not known of which network it is.
    """
    weights, settings_path = load_weights(path), config or path.resolve().parent / SETTINGS
    search = UNKNOWN_RUN
    if config or settings_path.is_file():
        settings = load_settings(settings_path)
        game, search = load_game(settings.game.name, **settings.game.options), settings.search
        model = Model(description=describe_model(game, find_arguments(settings.network, weights), 0), weights=weights)
    else:
        try:
            model = make_model_from_weights(load_game("twenty48"), weights)
        except ValueError as error:
            raise ValueError(
                f"{path} holds only weights, and there is no {SETTINGS} next to it to name their game and network: "
                f"give its run's settings as --config FILE. (It is not a network for 2048 on 4 x 4 either: {error})"
            ) from error
    file = folder / "model.safetensors"
    save_safetensors(file, model)
    try:
        return check_weights_fit(model, file, search)
    except CorruptModel as error:
        raise ValueError(f"{path} does not fit the network that {settings_path} describes: {error}") from error


def find_arguments(network: NetworkSettings, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the network with these weights, which may have grown in its run."""
    stem = weights.get("stem.conv.weight")
    blocks = {name.split(".")[1] for name in weights if name.startswith("tower.")}
    size = {"blocks": len(blocks), "channels": 0 if stem is None else len(stem)}
    sizes = [network.arguments(steps) for steps in range(len(network.growth) + 1)]
    return next((each for each in sizes if each.items() >= size.items()), sizes[0])


def check_weights_fit(model: Model, path: Path, search: SearchSettings) -> PlayableNetwork:
    """Return the network after checking here, not in other processes, that its weights fit.

    Raises:
        CorruptModel: they are not.
        ValueError: there is no such game.
    """
    game = load_game(model.description.game, **model.description.options)
    model.build(game)
    return PlayableNetwork(game=game, model=model, path=path, search=search)


def make_version_entrants(
    run: Path, versions: Sequence[int], num_simulations: int, algorithm: str | None
) -> list[Entrant]:
    """Return a run's models as opponents.

    Raises:
        ValueError, OSError: one is not there, or cannot be read.
    """
    return [
        Entrant(name=f"version-{version}", spec=load_network_from_run(run, version).spec(num_simulations, algorithm))
        for version in versions
    ]


def make_file_entrants(paths: Sequence[Path], game: Game, num_simulations: int, algorithm: str | None) -> list[Entrant]:
    """Return other runs' newest models, or models in files, as opponents named by their paths.

    Raises:
        ValueError, OSError: one is not there, cannot be read, or plays another game.
    """
    found = []
    for path in paths:
        other = load_network_at(path)
        if (other.game.name, other.game.options) != (game.name, game.options):
            raise ValueError(
                f"--against: {path} plays {other.game.name} {other.game.options}, not {game.name} {game.options}"
            )
        found.append(Entrant(name=str(path), spec=other.spec(num_simulations, algorithm)))
    return found
