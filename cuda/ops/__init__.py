"""The kernels as Python functions that check their arguments, in folders as in `kernels/`.

Every module lists the variants of its kernels in `VARIANTS`: they are compiled by the tests.
"""
