"""Bulk building: a Spark job computes a ledger's rows from Parquet, and a loader writes them into an empty ledger."""
