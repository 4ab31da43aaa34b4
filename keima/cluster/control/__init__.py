"""How users observe and control a cluster: status, requests, and the config that is followed."""
