"""The rooms of the code and which may import which, from the ground up.

    .venv/bin/python tests/rooms.py

prints each room with its files and lines, the rooms that it imports, and what violates the table: an import that the
table does not allow, a file without a room, or a circle of imports. The exit code is 1 if there is a violation. ``make
check`` runs it.
"""

import functools
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.sources import ROOMS, ROOT, imported_files, programs, python_files, relative

# A room may import itself, `configs`, `games`, and the rooms that are named here. Those three are below all of them.
RUN = ("common", "search", "data", "ranks", "networks", "self_play", "replay", "learning", "evaluation", "worker")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "configs": (),
    "games": ("configs",),
    "training/common": (),
    "training/search": ("training/common",),
    "training/data": ("training/common",),
    "training/networks": ("training/common", "training/data"),
    "training/ranks": ("training/common", "training/networks"),
    "training/self_play": ("training/common", "training/data", "training/search"),
    "training/replay": ("training/common", "training/data"),
    "training/learning": ("training/common", "training/data", "training/networks", "training/ranks", "training/replay"),
    "training/evaluation": (
        "training/common",
        "training/data",
        "training/networks",
        "training/search",
        "training/self_play",
    ),
    "training/worker": (
        "training/common",
        "training/data",
        "training/networks",
        "training/search",
        "training/self_play",
        "training/evaluation",
    ),
    "training/run": tuple(f"training/{name}" for name in RUN),
    "training/ppo": ("training/common", "training/networks", "training/ranks", "training/learning"),
    "engines": ("training/common", "training/data", "training/search", "training/networks", "training/evaluation"),
    "views": (
        "training/common",
        "training/data",
        "training/networks",
        "training/evaluation",
        "training/ppo",
        "engines",
    ),
    "web": ("training/common", "training/data", "training/networks", "training/search", "engines", "views"),
    "distributed/remote": (),
    "distributed/ssh": ("training/common",),
    "distributed/local": (*(f"training/{name}" for name in RUN), "training/run", "views"),
    "distributed/setup": ("training/common", "distributed/ssh", "distributed/remote"),
    "distributed/fleet": (
        *(f"training/{name}" for name in RUN),
        "training/run",
        "distributed/ssh",
        "distributed/remote",
        "distributed/setup",
    ),
    "distributed/slurm": (
        "training/common",
        "training/worker",
        "distributed/ssh",
        "distributed/setup",
    ),
    "distributed/ray": (
        "training/common",
        "training/worker",
        "distributed/ssh",
        "distributed/remote",
        "distributed/setup",
    ),
    "distributed/operations": (
        "training/common",
        "training/run",
        "views",
        "distributed/ssh",
        "distributed/setup",
        "distributed/slurm",
        "distributed/fleet",
        "distributed/ray",
    ),
    "distributed": (
        "training/common",
        "distributed/ssh",
        "distributed/local",
        "distributed/setup",
        "distributed/operations",
    ),
    "zero": (),
    "keima": (
        *(f"training/{name}" for name in RUN),
        "training/run",
        "engines",
        "views",
        "distributed/local",
        "distributed",
    ),
}
EVERYWHERE = ("configs", "games")
# Files that other rooms may not import, and the file through which they get the contents.
DOORS = {
    f"training/networks/{name}.py": "training/networks/model_file.py"
    for name in ("model_codec", "model_weights", "weights_file")
}


def room_of(path: Path) -> str:
    """Return the room of a file of library code."""
    top, *rest = path.relative_to(ROOT).parts
    return f"{top}/{rest[0]}" if top in ("training", "distributed") and len(rest) > 1 else top


def allowed(room: str) -> set[str]:
    """Return the rooms that a room may import; those on the ground import nothing."""
    return {room, *MAY_IMPORT[room], *(EVERYWHERE if room not in EVERYWHERE else ())}


@functools.cache
def library() -> tuple[Path, ...]:
    """Return the files that have a room. Files that only describe a package have none: ``training/__init__.py``."""
    return tuple(path for path in python_files(*ROOMS) if path != ROOT / "training/__init__.py")


def arrows(room: str) -> Counter[str]:
    """Return how many imports lead from the room to each other room."""
    files, known = [path for path in library() if room_of(path) == room], set(library())
    return Counter(room_of(file) for path in files for file in imported_files(path) & known if room_of(file) != room)


def without_room() -> list[str]:
    """Return the files of library code whose folder is not in the table."""
    return [relative(path) for path in library() if room_of(path) not in MAY_IMPORT]


def forbidden() -> list[str]:
    """Return the imports that the table does not allow, and those that bypass a door."""
    known, started = [path for path in library() if room_of(path) in MAY_IMPORT], programs()
    files = set(library())
    imports = [(path, file) for path in known for file in imported_files(path) & files]
    return [
        f"{relative(path)} imports {relative(file)}"
        for path, file in imports
        if room_of(file) not in allowed(room_of(path))
    ] + [
        f"{relative(path)} imports {relative(file)} instead of {DOORS[relative(file)]}"
        for path in [*known, *started]
        for file in imported_files(path)
        if relative(file) in DOORS and (path in started or room_of(path) != room_of(file))
    ]


def circle() -> list[str]:
    """Return the files of a circle of imports, among library code and programs; empty if there is none."""
    try:
        TopologicalSorter({path: imported_files(path) for path in [*library(), *programs()]}).prepare()
    except CycleError as error:
        return [relative(path) for path in error.args[1]]
    return []


def described(room: str) -> str:
    """Return a line about a room: its size, and the rooms that it imports with the number of imports."""
    files = [path for path in library() if room_of(path) == room]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    leads = ", ".join(f"{other} {count}" for other, count in sorted(arrows(room).items()))
    return f"{room:<22} {len(files):>3} files {lines:>6,} lines -> {leads or 'nothing'}"


def main() -> int:
    """Print the rooms and what is wrong with them."""
    for room in MAY_IMPORT:
        print(described(room))
    found = circle()
    wrong = [
        *(f"{name} has no room" for name in without_room()),
        *forbidden(),
        *([f"circle: {' -> '.join(found)}"] if found else []),
    ]
    print(f"{len(MAY_IMPORT)} rooms, {int(bool(found))} circles, {len(wrong)} imports or files against the table")
    for line in wrong:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
