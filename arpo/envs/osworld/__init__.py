"""OSWorld's virtual machines, set-up and graders."""
