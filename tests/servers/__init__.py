"""Real servers for tests: a Kafka broker, a PostgreSQL cluster, and a TCP proxy that disturbs their connections."""
