"""python -m citewell.index: the serving view of papers and evidence."""

from citewell.index.server import IndexServer
from citewell.index.settings import IndexSettings
from citewell.runtime.server import run

run("index", IndexSettings, IndexServer)
