"""Message types shared by the contracts."""
