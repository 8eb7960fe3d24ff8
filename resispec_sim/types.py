"""Names of choices that more than one module uses."""

from typing import Literal

Method = Literal["auto", "exact", "certified", "sampled"]
Backend = Literal["threads", "processes", "dask"]
