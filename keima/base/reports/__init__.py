"""What a run reports of its phases and workers, and the formats people see it in; imports nothing else of ``base``."""
