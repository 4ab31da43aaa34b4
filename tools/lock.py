"""Lock the packages: requirements.lock from pyproject.toml, and the requirements files from both.

    python tools/lock.py             resolve anew with uv, which must be installed, and write all files
    python tools/lock.py --files     write the requirements files alone, from the present lock

requirements.lock has every package of every extra, for all platforms. The requirements files have what pyproject.toml
names, each at its version in the lock: one for the package, one for each extra, one for development.
"""

import argparse
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
OPTIONS = ("--universal", "--fork-strategy=fewest", "--python-version=3.11", "--all-extras", "--group=dev")
QUIET = ("--no-header", "--no-annotate", "--quiet", "--upgrade")
HEAD = "# Made from pyproject.toml and requirements.lock by `make lock`.\n"


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="do not resolve anew")
    if not parser.parse_args().files:
        subprocess.run(
            ["uv", "pip", "compile", "pyproject.toml", *OPTIONS, *QUIET, f"-o{LOCK.name}"], cwd=ROOT, check=True
        )
    for name, text in requirements_files().items():
        (ROOT / name).write_text(text, encoding="utf-8")


def requirements_files() -> dict[str, str]:
    """Return the text of each requirements file by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = {
        "requirements.txt": project["project"]["dependencies"],
        "requirements-dev.txt": project["dependency-groups"]["dev"],
        **{
            f"requirements-{extra}.txt": listed for extra, listed in project["project"]["optional-dependencies"].items()
        },
    }
    versions = locked_versions()
    return {name: HEAD + "".join(f"{pinned(each, versions)}\n" for each in listed) for name, listed in named.items()}


def locked_versions() -> dict[str, str]:
    """Return the version of each package in the lock, by its normalized name."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([A-Za-z0-9._-]+)==([^ ;]+)", line) for line in lines)
    return {normalized(match[1]): match[2] for match in found if match}


def pinned(requirement: str, versions: dict[str, str]) -> str:
    """Return a requirement of pyproject.toml at its version in the lock."""
    what, _, marker = requirement.partition(";")
    match = re.match(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?", what)
    assert match, requirement
    return f"{match[0]}=={versions[normalized(match[1])]}{f'; {marker.strip()}' if marker else ''}"


def normalized(name: str) -> str:
    """Return a package's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
