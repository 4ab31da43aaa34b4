"""Programs that are no good engines."""

from pathlib import Path


def program(folder: Path, *lines: str) -> Path:
    """A program that does what these lines of the shell say."""
    path = folder / "engine"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path
