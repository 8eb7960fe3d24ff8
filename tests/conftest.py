"""Settings that every test shares."""

import os

# Before numpy or torch are loaded: two workers with a thread pool each slow one another down.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

# Never ask a hub for anything: models in the tests are local.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings

# The same examples on every run and machine; no deadline: a kernel's first call compiles it.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
