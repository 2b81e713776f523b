"""Operators and attention of decode algorithms, each a plain torch reading; nothing of ours is imported here."""
