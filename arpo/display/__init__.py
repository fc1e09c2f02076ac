"""The display of a run for a person: pictures, progress line and end card."""
