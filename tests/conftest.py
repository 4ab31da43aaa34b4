"""What holds for all tests: the same examples on every run, and one thread each, so that they do not wait for one another."""

import os

import hypothesis

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it; programs that tests start inherit it

hypothesis.settings.register_profile("keima", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("keima")
