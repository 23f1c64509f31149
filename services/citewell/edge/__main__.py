"""python -m citewell.edge: HTTP for browsers and scripts."""

from citewell.edge.server import EdgeServer
from citewell.edge.settings import EdgeSettings
from citewell.runtime.server import run

run("edge", EdgeSettings, EdgeServer)
