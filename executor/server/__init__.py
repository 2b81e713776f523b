"""The OpenAI-compatible server: HTTP in front of one `Session`; the way of a request is told in `worker.py`."""
