"""Races to a fixed strength: targets, their judge, records, and the checks of records."""
