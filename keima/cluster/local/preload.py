"""The imports of the fork server that starts workers and learner ranks (keima/base/system/processes.py)."""

from keima.base.system.processes import shield_fork_server

with shield_fork_server():
    import keima.cluster.local.learner_ranks
    import keima.cluster.local.processes  # noqa: F401
