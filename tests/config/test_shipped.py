"""The shipped experiments: they load, shrink, and explain every key."""

import re
from pathlib import Path

import pytest

from keima.config.load import known_keys, load_section, load_settings, shrink
from keima.config.sections.crowd import CrowdSettings
from keima.config.sections.ray import RaySettings
from keima.games import GAMES, load_game
from keima.learning.dataset_settings import BigExperiment, BigLearnerSettings
from keima.ppo.settings import TraderSettings
from tests.sources import EXPERIMENTS, ROOT

REFERENCE = ROOT / "configs" / "config.yaml"
ALL = sorted((ROOT / "configs").glob("*.yaml"))
KEY = re.compile(r"^ *(- )?(?P<key>[a-z][a-z0-9_]*):(?P<rest>.*)$")


def with_examples(path: Path) -> str:
    """Return a file's text with its commented-out example workers enabled."""
    text = re.sub(r"^  #  ", "    ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = text.replace("workers: [] ", "workers: ")
    return re.sub("(slurm|ray|crowd): null ", r"\1: ", text)


def keys(path: Path) -> dict[str, str]:
    """Return each dotted key of a file, those of examples included, with the rest of its line."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for match in filter(None, map(KEY.match, with_examples(path).splitlines())):
        depth = match.start("key")
        above = [*(pair for pair in above if pair[0] < depth), (depth, match["key"])]
        found.setdefault(".".join(key for _, key in above), match["rest"])
    return found


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_a_shipped_file_loads(path: Path) -> None:
    settings = load_settings(path)
    assert settings.run.iterations or settings.run.minutes, "it ends"


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_a_shipped_file_names_a_game_that_accepts_its_options(path: Path) -> None:
    game = load_settings(path).game
    if game.name not in GAMES:
        pytest.skip(f"there is no {game.name} yet")
    assert load_game(game.name, **game.options).name == game.name


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_a_shipped_file_shrinks_to_a_run_of_seconds_in_a_separate_folder(path: Path) -> None:
    settings = load_settings(path)
    small = shrink(settings)
    assert small.run.name == f"{settings.run.name}-smoke"
    assert (small.run.iterations, small.run.minutes) == (2, None)
    assert (small.network.blocks, small.network.channels) == (1, 8)
    assert small.search.num_simulations <= 8
    assert small.training.games_per_iteration <= 8
    assert small.training.batch_size <= small.training.window.min_positions <= 16


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_shrinking_keeps_the_subject_of_the_run(path: Path) -> None:
    settings = load_settings(path)
    small = shrink(settings)
    assert small.game == settings.game
    assert small.search.algorithm == settings.search.algorithm
    assert small.search.full_search_probability == settings.search.full_search_probability
    assert small.training.asynchronous == settings.training.asynchronous
    assert bool(small.evaluation.every) == bool(settings.evaluation.every)


def test_any_settings_can_be_shrunk_even_the_smallest_and_the_largest() -> None:
    settings = load_settings(REFERENCE)
    window = settings.training.window.model_copy(update={"min_positions": 4, "max_positions": 4})
    small = settings.training.model_copy(update={"batch_size": 2, "window": window})
    search = settings.search.model_copy(update={"num_simulations": 1, "cheap_simulations": 1})
    long = settings.run.model_copy(update={"name": "x" * 64})
    shrunk = shrink(settings.model_copy(update={"training": small, "search": search, "run": long}))
    assert (shrunk.training.batch_size, shrunk.search.num_simulations, len(shrunk.run.name)) == (2, 1, 64)
    assert shrink(shrunk).training == shrunk.training


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_key_of_a_shipped_file_is_explained(path: Path) -> None:
    assert not [key for key, rest in keys(path).items() if " # " not in rest]


def test_the_reference_file_explains_every_setting() -> None:
    explained = keys(REFERENCE)
    defaults = {key.replace(".workers.", ".defaults.") for key in explained if key.startswith("distributed.workers.")}
    assert not set(known_keys()) - explained.keys() - defaults
    assert explained.keys() - set(known_keys()) == {"game.options.size", "game.options.komi"}


@pytest.mark.parametrize("name", ["ppo_lstm", "20x256"])
def test_all_settings_of_the_other_programs_are_explained_with_their_defaults(name: str) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    explained = keys(path).keys()
    if name == "ppo_lstm":
        assert explained == set(known_keys(TraderSettings)) and load_section(path, TraderSettings) == TraderSettings()
    else:
        assert explained >= {f"big_learner.{key}" for key in BigLearnerSettings.model_fields}
        experiment = load_section(path, BigExperiment)
        assert experiment.big_learner == BigLearnerSettings()
        assert (experiment.network.blocks, experiment.network.channels) == (20, 256)


def test_the_reference_file_states_the_defaults() -> None:
    settings = load_settings(REFERENCE)
    for section in ("network", "search", "self_play", "training", "evaluation", "distributed"):
        assert getattr(settings, section) == type(getattr(settings, section))(), section


def test_the_example_workers_of_the_reference_file_are_valid_when_uncommented(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(with_examples(REFERENCE), encoding="utf-8")
    distributed = load_settings(path, overrides={"distributed.enabled": True}).distributed
    names = [worker.name for worker in distributed.workers]
    assert names == ["worker1", "worker2", *(f"node{number:02}" for number in range(1, 41))]
    assert distributed.workers[1].gpu_ids == (0, 1)
    assert distributed.slurm and len(distributed.slurm.names) == 16
    assert distributed.ray == RaySettings()
    assert distributed.crowd == CrowdSettings()
