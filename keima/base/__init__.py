"""What every room uses and that knows no game: files, run folders, locks, random streams, steps; reports; system."""
