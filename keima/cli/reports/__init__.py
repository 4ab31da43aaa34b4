"""Programs that show, check or write out what a run has left. They may import anything below ``keima.cli``."""
