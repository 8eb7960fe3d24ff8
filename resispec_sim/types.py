"""Names of choices that more than one module uses."""

from typing import Literal

Device = Literal["cpu", "cuda"]
Method = Literal["auto", "exact", "certified", "sampled"]
Backend = Literal["threads", "processes", "dask"]
