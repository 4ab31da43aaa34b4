#!/usr/bin/env python3
"""Play games in one worker folder: the program of a worker machine (``keima.cli.worker``); ``--help`` explains it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("keima.cli.worker", run_name="__main__")
