"""Operators in fixed shapes: no size depends on data and nothing is read by the host, so that a graph can hold them.

Each file holds the torch form of one kernel and the custom op that joins it to the kernel of the same name in
`kernels/triton/`: tensors on a CPU run the torch form, tensors on a GPU the kernel, fake tensors neither.
"""
