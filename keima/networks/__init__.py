"""Networks: how they are built, evaluated, and kept in files."""
