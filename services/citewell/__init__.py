"""citewell tells a writer what to cite, shows why, and stays current as papers appear."""

__version__ = "0.1.0"
