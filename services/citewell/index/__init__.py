"""The serving view of papers and evidence in the store."""
