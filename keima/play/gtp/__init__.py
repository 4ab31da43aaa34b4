"""Keima as a Go engine: the Go Text Protocol, version 2."""
