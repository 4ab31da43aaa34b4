#!/usr/bin/env python3
"""Train a network by self-play: the program of the main node (``keima.cli.training.train``); ``--help`` explains it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("keima.cli.training.train", run_name="__main__")
