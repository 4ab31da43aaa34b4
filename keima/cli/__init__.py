"""The programs: each parses its command line, checks it, and only then imports what it runs."""
