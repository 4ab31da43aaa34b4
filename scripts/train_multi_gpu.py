#!/usr/bin/env python3
"""Train a network by self-play on the GPUs of this machine (``keima.cli.train_multi_gpu``); ``--help`` explains it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("keima.cli.train_multi_gpu", run_name="__main__")
