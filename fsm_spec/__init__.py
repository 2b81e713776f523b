"""Decode algorithms of LLM serving as state machines: the language, its table, and what runs on it."""
