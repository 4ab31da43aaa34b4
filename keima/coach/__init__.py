"""A whole run: the Coach, its backends, and how a run starts and resumes."""
