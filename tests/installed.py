"""Keima as users have it who have no checkout: a wheel, installed in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.sources import ROOT


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel, and the packages of the tests' environment beside it."""

    environment: Path

    @property
    def keima(self) -> Path:
        """The command."""
        return self.environment / "bin" / "keima"

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.environment / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder with the package."""
        (found,) = self.environment.glob("lib/python*/site-packages")
        return found

    def run(self, *command: str | Path, folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in ``folder``: ``keima``, or ``python``."""
        variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run(  # type: ignore[call-overload]
            [self.environment / "bin" / command[0], *command[1:]],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=280,
            **options,
        )


def build_wheel(folder: Path) -> Path:
    """Build the checkout's wheel from a copy of what it is built from, and return its path."""
    source = folder / "source"
    source.mkdir(parents=True)
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "keima", "configs"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in (*names, "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).symlink_to((ROOT / name).readlink() if (ROOT / name).is_symlink() else ROOT / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, f"--wheel-dir={folder}", str(source)], check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Installation:
    """Install a wheel in a new environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    made = Installation(folder)
    command = [sys.executable, "-m", "pip", f"--python={made.python}", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, text=True)
    # A path alone: the file there that leads to the checkout is not read.
    (made.site_packages / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return made
