"""Finished runs side by side: what differs, what came of it, and how sure that is."""
