"""The tools that a person uses beside a run; nothing that a run is made of imports them."""
