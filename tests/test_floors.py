"""Who may import whom. A file imports only from what stands before it: docs/architecture.md draws it, this checks it."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.sources import ROOMS, ROOT, imported_files, imported_modules, programs, python_files, relative

HOUSE = ["configs", "games", "training", "distributed", "zero"]  # above them all: scripts, benchmarks and start_*.py

# Within training/, lowest first; a folder stands for all of its files. Floors 1 to 3 of the map are its three parts.
TRAINING = [
    "__init__.py",
    # 1: what a game, a network and a record of a game are
    "ctrl_c.py",
    "random.py",
    "compiling.py",
    "files.py",
    "reports.py",
    "intervals.py",
    "columns.py",
    "tail.py",
    "logs.py",
    "records.py",
    "verify.py",
    "foresight.py",
    "scores.py",
    "line_reader.py",
    "early.py",
    "time_keeping.py",
    "resignation.py",
    "run_lock.py",
    "disk_words.py",
    "start.py",
    "run_folder.py",
    "ledger_rows.py",
    "ledger.py",
    "model_heading.py",
    "receive.py",
    "played_games.py",
    "game_view.py",
    "calibration.py",
    "pgn_games.py",
    "sgf_games.py",
    "game_export.py",
    "seed_games.py",
    "search",
    "value_heads.py",
    "resnet.py",
    "auxiliary_heads.py",
    "bfloat16.py",
    "spike_kernels.py",
    "spiking.py",
    "spike_counts.py",
    "network.py",
    "fused.py",
    "event_driven.py",
    "zero_network.py",
    # 2: playing and learning
    "evaluator.py",
    "thinking.py",
    "uci_words.py",
    "uci_options.py",
    "uci.py",
    "gtp_words.py",
    "gtp_clock.py",
    "gtp_rules.py",
    "gtp_board.py",
    "gtp_outlook.py",
    "gtp.py",
    "game_log.py",
    "self_play.py",
    "auxiliary_targets.py",
    "value_targets.py",
    "replay.py",
    "game_files.py",
    "epochs.py",
    "feed.py",
    "tally.py",
    "tuning.py",
    "model_weights.py",
    "model_file.py",
    "weights_file.py",
    "model_delta.py",
    "meeting.py",
    "ranks.py",
    "save_folder.py",
    "torchrun.py",
    "rank_norm.py",
    "total_batch.py",
    "update_step.py",
    "muon.py",
    "optimizer_state.py",
    "learner.py",
    "generalization.py",
    "big_learner.py",
    "checkpoint.py",
    "fingerprint.py",
    "actor_critic.py",
    "rollout.py",
    "ppo_reports.py",
    "ppo.py",
    "ppo_checkpoint.py",
    # 3: a whole run
    "bounds.py",
    "leading.py",
    "evaluation",
    "worker_folder.py",
    "batching.py",
    "spool.py",
    "model_push.py",
    "summary.py",
    "rates.py",
    "troubles.py",
    "worker_match.py",
    "worker.py",
    "worker_class.py",
    "backend.py",
    "granting.py",
    "observers",
    "coach.py",
    "run.py",
    "sitting.py",
    "following.py",
]

TORCH = [
    "value_heads.py",
    "resnet.py",
    "auxiliary_heads.py",
    "spiking.py",
    "spike_counts.py",
    "network.py",
    "zero_network.py",
    "fused.py",
    "event_driven.py",
    "evaluator.py",
    "model_weights.py",
    "model_file.py",
    "weights_file.py",
    "feed.py",
    "ranks.py",
    "torchrun.py",
    "rank_norm.py",
    "update_step.py",
    "muon.py",
    "optimizer_state.py",
    "learner.py",
    "generalization.py",
    "big_learner.py",
    "actor_critic.py",
    "rollout.py",
    "ppo.py",
]

LIBRARY = python_files(*ROOMS)
EVERYTHING = [*LIBRARY, *programs()]
IN_TRAINING = python_files("training")


def names(paths: list[Path]) -> list[str]:
    return [relative(path) for path in paths]


def rooms_below(path: Path) -> list[str]:
    """The rooms from which the file may import: its own and those below it."""
    room = path.relative_to(ROOT).parts[0]
    return HOUSE[: HOUSE.index(room) + 1] if room in HOUSE else [*HOUSE, room, *(["tests"] if room == "benchmarks" else [])]


@pytest.mark.medium
def test_a_file_imports_only_from_its_room_and_those_below() -> None:
    imports = [(path, file) for path in EVERYTHING for file in imported_files(path)]
    assert not [names([path, file]) for path, file in imports if file.relative_to(ROOT).parts[0] not in rooms_below(path)]


def place(path: Path) -> int:
    """Where the table has a file of training/."""
    return TRAINING.index(path.relative_to(ROOT / "training").parts[0])


def test_every_file_of_training_has_its_place_in_the_table() -> None:
    assert {path.relative_to(ROOT / "training").parts[0] for path in IN_TRAINING} == set(TRAINING)


def test_a_file_of_training_imports_only_what_the_table_has_before_it() -> None:
    imports = [(path, file) for path in IN_TRAINING for file in imported_files(path) & set(IN_TRAINING)]
    across = [(path, file) for path, file in imports if path.parent != file.parent or path.parent == ROOT / "training"]
    assert not [names([path, file]) for path, file in across if place(file) >= place(path)]


@pytest.mark.medium
def test_there_are_no_import_cycles() -> None:
    graph = {path: imported_files(path) for path in EVERYTHING}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(relative(path) for path in error.args[1]))


def imports(path: Path, package: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for module in imported_modules(path))


def test_torch_stays_where_tensors_are() -> None:
    using = {path for path in EVERYTHING if imports(path, "torch")} - set(python_files("benchmarks"))
    assert using == {ROOT / "training" / name for name in TORCH}


@pytest.mark.medium
@pytest.mark.parametrize("package", ["threading", "multiprocessing", "paramiko"])
def test_what_is_hard_to_get_right_stays_in_one_file(package: str) -> None:
    assert len(names([path for path in set(EVERYTHING) - set(python_files("benchmarks")) if imports(path, package)])) <= 1


@pytest.mark.medium
@pytest.mark.parametrize("package", ["concurrent", "asyncio", "pickle", "dill", "marshal", "shelve"])
def test_what_the_house_does_without_is_imported_nowhere(package: str) -> None:
    assert not names([path for path in EVERYTHING if imports(path, package)])


def test_every_room_is_a_package() -> None:
    folders = {path.parent for path in LIBRARY}
    assert not names(sorted(folder for folder in folders if not (folder / "__init__.py").is_file()))
