from hypothesis import settings

# A wall-clock deadline says something about the machine's load, not about the code.
settings.register_profile("agent", deadline=None)
settings.load_profile("agent")
