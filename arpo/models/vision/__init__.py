"""Pictures on their way to a vision tower: decoded, and cut into patches."""
