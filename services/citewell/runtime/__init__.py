"""What all services share: settings, errors, server lifecycle, deadlines, telemetry, channels."""
