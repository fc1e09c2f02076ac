"""Attacks of an agent on its judge: none of them may score, none may escape its zero, none may reach the trainer."""
