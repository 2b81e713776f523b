"""The kernels in fixed shapes, without a wait for the host: what a captured round runs.

Each file stands beside the reading of the same name in `kernels/`, which says what it means. Inputs are dense and
padded; dead rows and padded requests are computed harmlessly, and what they give is never read.
On CUDA tensors a custom op calls the Triton kernel of its name in `kernels/triton/`, imported when first called.
"""
