"""What every room uses and that knows no game: files, formats, reports, locks, steps."""
