"""A dress rehearsal: an experiment's own composition on this machine, with stand-ins for what is missing here."""
