"""The event log in one SQLite file, for one machine and one process."""
