"""The rivals: systems of the four papers, trained and measured on the same data and in the same run as ours."""
