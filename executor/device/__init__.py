"""The device form of the runner: requests in fixed slots, one graph replay a phase."""
