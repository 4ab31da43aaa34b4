"""Tools for every room that know no game: files, formats, reports, locks, steps."""
