"""The ledger: papers, citations and the sums that profiles are made from. The truth; the index is a view of it."""
