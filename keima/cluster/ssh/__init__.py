"""Machines behind SSH: connections, routes, host keys, and the transport of files."""
