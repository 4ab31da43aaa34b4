#!/usr/bin/env python3
"""Check that the ledger of a run balances (``keima.cli.audit``); ``--help`` explains it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("keima.cli.audit", run_name="__main__")
