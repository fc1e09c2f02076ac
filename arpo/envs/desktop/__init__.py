"""Our own desktops in Docker."""
