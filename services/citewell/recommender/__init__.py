"""The public API: recommends what to cite, and shows why."""
