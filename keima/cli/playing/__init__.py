"""Programs that play: against people, other programs and in matches. They may import anything below ``keima.cli``."""
