"""Query vectors, profiles, and the ledger they are made from."""
