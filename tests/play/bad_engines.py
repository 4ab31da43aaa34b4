"""Programs that are not proper engines."""

from pathlib import Path


def program(folder: Path, *lines: str) -> Path:
    """Make a program of these lines of shell."""
    path = folder / "engine"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path
