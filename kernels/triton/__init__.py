"""Triton kernels; each file stands beside the plain torch reading of the same name in `kernels/`."""
