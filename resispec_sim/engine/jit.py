"""The one place that sets numba's options.

No fastmath: laws are checked to 1e-12 and depend on the order of operations as written.
"""

import numba

njit = numba.njit(cache=True, nogil=True, error_model="numpy")

# Without numba's runtime a function counts no references to the arrays that it is given, which in the
# inner loops of a walk cost ten times what the arithmetic does. It cannot make arrays then: every
# scratch space is an argument.
kernel = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
inlined = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False, forceinline=True)
"""For what is called once per path, and would copy every array of a position's tables."""
