"""Reaching workers: processes on this machine; other machines come next."""
