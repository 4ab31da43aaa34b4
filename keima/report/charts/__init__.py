"""Curves and pages: HTML, PNG, and the data of the charts in a browser."""
