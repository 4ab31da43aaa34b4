"""The modules that users' files import by the names that they had before Keima was one package.

``from games.plain import plain_game`` and ``from training.worker import Worker`` go on working, also on workers: the
same objects under an older name. New files import from ``keima``.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OLDER = {  # by older name, today's name; or empty: a name that only holds others
    "games": "keima.games",
    "games.boards": "keima.games.boards",
    "games.compiled": "keima.compilation.decorators",
    "games.contract": "keima.games.authoring.contract",
    "games.game": "keima.games.game",
    "games.plain": "keima.games.authoring.plain",
    "training": "",
    "training.networks": "",
    "training.networks.layers": "keima.networks.architectures.layers",
    "training.networks.policy_value": "keima.networks.policy_value",
    "training.networks.value_heads": "keima.networks.value_heads",
    "training.search": "",
    "training.search.puct": "keima.search.puct",
    "training.self_play": "",
    "training.self_play.groups": "keima.self_play.groups",
    "training.worker": "keima.worker",
    "training.worker.worker_folder": "keima.worker.worker_folder",
}
DOOR = "__keima_door__"  # marks a module under an older name


class OlderNames(MetaPathFinder, Loader):
    """Finds modules by their older names, unless another package has the name."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how the module is loaded, or None if the name is not one of Keima's."""
        holder = sys.modules.get(name.rpartition(".")[0])
        if name not in OLDER or (holder is not None and not hasattr(holder, DOOR)):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that has what today's has."""
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Open the module."""
        become_door(module)


class TopNames(OlderNames):
    """Finds the packages of older names where nothing else has their names, such as a package of the user's."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how the package is loaded, or None if the name is not one of Keima's."""
        return ModuleSpec(name, self, is_package=True) if name in OLDER and "." not in name else None


def accept_older_names() -> None:
    """Let this process import modules by their older names, from now on."""
    if not any(isinstance(finder, OlderNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OlderNames())
        sys.meta_path.append(TopNames())


def become_door(module: ModuleType) -> None:
    """Give a module under an older name everything that today's module has: the same objects."""
    accept_older_names()
    setattr(module, DOOR, True)
    today = OLDER.get(module.__name__)
    if today:
        named = import_module(today)
        module.__getattr__ = lambda name: getattr(named, name)  # type: ignore[method-assign]


def name_today(module: str) -> str:
    """Return the present name of a module, or of a name in one."""
    if OLDER.get(module):
        return OLDER[module]
    holder, _, name = module.rpartition(".")
    return f"{OLDER[holder]}.{name}" if OLDER.get(holder) else module
