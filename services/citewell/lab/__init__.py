"""Training and evaluation. It imports the services' pure domain modules; no service imports it."""
