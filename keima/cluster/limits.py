"""Default limits on how much the commands about a cluster do at a time."""

LOG_LINES = 40  # of each log
AT_ONCE = 8  # connections: by default, an sshd, such as a gateway's, drops some of more than 10 that log in at once
LOG_MEGABYTES = 8  # of one gathered log
