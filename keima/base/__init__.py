"""Tools for every room that know no game: files, run folders, locks, random streams, steps; reports; system."""
