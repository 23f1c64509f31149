"""Start me: python -m citewell.profiler."""

from citewell.profiler.server import ProfilerService
from citewell.profiler.settings import ProfilerSettings
from citewell.runtime.server import run

if __name__ == "__main__":
    run("profiler", ProfilerSettings, ProfilerService)
