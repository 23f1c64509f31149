"""Starts the recommender: python -m citewell.recommender."""

from citewell.recommender.server import RecommenderServer
from citewell.recommender.settings import RecommenderSettings
from citewell.runtime.server import run

if __name__ == "__main__":
    run("recommender", RecommenderSettings, RecommenderServer)
