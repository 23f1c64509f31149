"""The HTTP edge: the recommender's contract for browsers and HTTP clients, and a page for writers."""
