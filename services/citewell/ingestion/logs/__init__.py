"""Where published events are kept: one port (event_log.py), two adapters (local/ on SQLite, kafka/ on a broker)."""
