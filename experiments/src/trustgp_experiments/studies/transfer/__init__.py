"""From one arm to another, without and with rows of it."""
