"""The one place that sets numba's options.

No fastmath: laws are checked to 1e-12 and depend on the order of operations as written.
"""

import numba

njit = numba.njit(cache=True, nogil=True, error_model="numpy")
