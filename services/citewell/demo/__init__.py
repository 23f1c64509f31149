"""An invented world of papers and citations whose right answers are known: for the demo, the tests and load tests."""
