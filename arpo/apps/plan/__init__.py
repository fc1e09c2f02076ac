"""The needs of a run, computed from its configuration before anything is rented or started."""
