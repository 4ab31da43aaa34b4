#!/usr/bin/env python3
"""Train a big network on files of games, on one or several GPUs or machines (``keima.cli.big_learner``); ``--help``
explains it.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("keima.cli.big_learner", run_name="__main__")
