"""The event log on a Kafka broker, for any number of processes."""
