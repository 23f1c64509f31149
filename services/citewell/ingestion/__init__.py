"""The event log of publications."""
