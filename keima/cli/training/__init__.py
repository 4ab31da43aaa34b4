"""Programs that train. They may import anything below ``keima.cli``."""
