"""Experiments and networks by the names that users type: a path, or the name of a run or of a shipped file.

Imports only the standard library, so that programs start fast.
"""

import difflib
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from keima.base.run_folder import LEDGER_NAME, RUNS, list_runs, resolve_run_folder
from keima.paths import SHIPPED, find_file, workspace

CONFIGS, MODELS, TARGETS = SHIPPED / "configs", SHIPPED / "models", SHIPPED / "targets"


def find_experiment(text: str) -> Path:
    """Return a settings file by its path, or by the name of an experiment, such as ``quickstart``.

    Raises:
        ValueError: there is no experiment of that name, or both a shipped one and another file here have it.
    """
    if not is_name(text):
        return find_file(text)
    own = [Path(f"{text}.yaml"), workspace() / CONFIGS.name / f"{text}.yaml"]
    return resolve_name(text, CONFIGS / f"{text}.yaml", [path for path in own if path.is_file()], what="experiment")


def find_network(text: str) -> Path:
    """Return a network by a run's folder, a model's file, or the name of a run or of a shipped network.

    Raises:
        ValueError: there is no network of that name, or both a run here and a shipped network have it.
    """
    if not is_name(text):
        path = find_file(text)
        return path if path.exists() else resolve_run_folder(path) if resolve_run_folder(path).is_dir() else path
    own = [path for path in (Path(text), RUNS / text) if path.is_file() or (path / LEDGER_NAME).exists()]
    return resolve_name(text, MODELS / f"{text}.safetensors", own, what="network")


def find_target(text: str) -> Path:
    """Return the file of a race's target by its path, or by the name of a shipped one.

    Raises:
        ValueError: there is no target of that name.
    """
    return resolve_name(text, TARGETS / f"{text}.yaml", [], what="target") if is_name(text) else find_file(text)


def add_network(add: Callable[..., object], **options: object) -> None:
    """Add the argument that names a network to a command line."""
    text = "a run's folder or name, a model's file, or a shipped network"
    add("network", type=flag_type(find_network), metavar="NETWORK", help=text, **options)


def flag_type(find: Callable[[str], Path]) -> Callable[[str], Path]:
    """Return the type of a flag that takes what ``find`` finds."""

    def read(text: str) -> Path:
        try:
            return find(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    read.completer = word_completer(experiment_names if find is find_experiment else network_names)  # type: ignore[attr-defined]
    return read


def word_completer(names: Callable[[], list[str]]) -> Callable[..., list[str]]:
    """Return a shell completer for these names, and files."""

    def complete(prefix: str, **_: object) -> list[str]:
        files = [f"{path}/" if path.is_dir() else str(path) for path in Path().glob(f"{prefix}*")]
        return [*(name for name in names() if name.startswith(prefix)), *files]

    return complete


def experiment_names() -> list[str]:
    """Return the names of the shipped experiments."""
    return [path.stem for path in CONFIGS.glob("*.yaml")]


def network_names() -> list[str]:
    """Return the names of the shipped networks, and of the runs here."""
    return [*(path.stem for path in MODELS.glob("*.safetensors")), *run_names()]


def run_names() -> list[str]:
    """Return the names of the runs here."""
    return [path.name for path in list_runs()]


def is_name(text: str) -> bool:
    """Return whether this is a bare name rather than a path."""
    return bool(text) and "/" not in text and "." not in text


def resolve_name(name: str, shipped: Path, own: list[Path], *, what: str) -> Path:
    """Return the file that a name means: the shipped file, which may be missing, or one of the user's.

    Raises:
        ValueError: there is none, or more than one.
    """
    found: list[Path] = []
    for path in [*own, *([shipped] if shipped.exists() else [])]:
        if not any(path.samefile(other) for other in found):  # a checkout's own are the shipped ones
            found.append(path)
    if len(found) == 1:
        return found[0]
    if found:
        places = " and ".join(f"the shipped one, {path}" if path == shipped else typed_path(path) for path in found)
        raise ValueError(f"{name} names more than one {what}: {places}; write the path of the one that you mean")
    names = sorted(path.stem for path in shipped.parent.glob(f"*{shipped.suffix}"))
    close = difflib.get_close_matches(name, names, n=1)
    known = f"did you mean {close[0]}?" if close else f"shipped are {', '.join(names)}; or name a file, with its folder"
    raise ValueError(f"there is no {what} called {name}; {known}")


def typed_path(path: Path) -> str:
    """Return a path as it must be typed so that it is not taken for a name."""
    return str(path) if "/" in str(path) else f"./{path}"
