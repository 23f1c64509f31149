"""Starts the reranker: python -m citewell.reranker."""

from citewell.reranker.server import RerankerServer
from citewell.reranker.settings import RerankerSettings
from citewell.runtime.server import run

if __name__ == "__main__":
    run("reranker", RerankerSettings, RerankerServer)
