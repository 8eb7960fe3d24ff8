"""The GPU engine on a GPU; skipped where there is none, with what is missing.

No GPU has been at hand for this project so far: these tests have not been run on one.
"""

import check_gpu
import pytest

from resispec_sim.engine.gpu.devices import require_gpu
from resispec_sim.errors import DeviceError

try:
    CUPY, MISSING = require_gpu(), ""
except DeviceError as error:
    CUPY, MISSING = None, str(error)

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "a GPU is there")


def passes(run, *args):
    session = check_gpu.Session(seconds=600)
    run(session, *args)
    assert session.checks
    assert not session.broken


def test_preparation():
    passes(check_gpu.check_preparation, CUPY)


def test_kernels_agree_with_the_oracle():
    passes(check_gpu.check_oracle)


def test_kernels_agree_with_the_cpu_engine():
    passes(check_gpu.check_engine)


def test_arrays_of_other_libraries():
    passes(check_gpu.check_dlpack, CUPY)


@pytest.mark.parametrize("dump", check_gpu.DUMPS, ids=lambda dump: dump[0])
def test_shipped_dumps(dump):
    passes(check_gpu.check_dump, CUPY, *dump)
