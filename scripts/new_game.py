#!/usr/bin/env python3
"""Begin a game of your own (``keima.cli.new_game``); ``--help`` explains it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("keima.cli.new_game", run_name="__main__")
