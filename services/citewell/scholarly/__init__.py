"""What every service means by papers, dates, contexts and publications. Pure: standard library only."""
