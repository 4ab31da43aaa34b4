"""Recorded games for people: boards, move by move, and exports."""
