"""What the server of processes imports before it starts those that play games (keima/base/system/processes.py)."""

from keima.base.system.processes import shield_fork_server

with shield_fork_server():
    import keima.play.arena.match_slice
    import keima.play.arena.score_slice  # noqa: F401
