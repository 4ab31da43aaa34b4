"""What people see of a cluster and say to it: status, requests, and the config that is followed."""
