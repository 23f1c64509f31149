"""Where models are trained and evaluated; it imports the services' pure domain, and no service imports it."""
