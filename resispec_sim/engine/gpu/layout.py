"""What the kernels' arrays hold: rows, units and limits, in one place for kernels and array code.

Legend: B = positions, V = tokens, K = siblings, k = index of a weight in ratio order, hi/lo = the
two parts of a sum.

A sum of terms is kept in two parts. A value is cut at a fixed unit: what is a multiple of it goes to
the first part, whose sums are then exact and the same in whatever order the atomics arrive; the rest,
below the unit, goes to the second. Float64 atomics alone would drop a digit per hundred paths.
"""

from __future__ import annotations

# Rows of the table of a position, (B, N_TABLE, V + 1), tokens in ratio order.
RHO, P, Q, PREFIX, PREFIX_LOW, SUFFIX, SUFFIX_LOW = range(7)
N_TABLE = 7

# Sizes of a position, (B, 3).
N_ZERO, N_DRAFTED, N_OVER = range(3)

# Rows of the first level, (B, N_FIRST, V): what rejecting one token leads to.
WEIGHT, SCALE, SHARE, INDEX, SPREAD, SPREAD_LOW = range(6)
N_FIRST = 6

# Rows of the sums, (B, n_rows, V + 1); each is followed by its lo row.
CNT = 0  # sum of c at k(w)
CW = 2  # sum of c w at k(w)
FULL = 4  # sum of c over terms that leave out a token of theirs, in units of p
FULL_W = 6  # the same in units of q
POINT = 8  # mass left out at a token
ACC = 10  # rows of the accepted mass: count, weighted count and mass left out, per sibling
ACC_CNT, ACC_CW, ACC_POINT = 0, 2, 4
ACC_ROWS = 6

# Totals of a position, (B, N_TOTALS); the accepted mass of sibling i follows at ACCEPTED + 2 i.
STEPS, BASE, BASE_LOW, TAIL, TAIL_LOW, ACCEPTED = range(6)
MAX_SIBLINGS = 8
N_TOTALS = ACCEPTED + 2 * MAX_SIBLINGS

# Added and taken away again, these round to a multiple of 2**-12 and 2**-49: sums stay exact up to
# 2**41 paths and to a weight of 16, where eight levels hold at most 8.
COUNT_BIG = 1.5 * 2.0**40
WEIGHT_BIG = 12.0

TINY = 1e-300
LIGHTEST = 1e-250  # lighter paths count as none: they carry nothing that could be seen
LEAST_FREE = 0.01  # below it the draft mass off the rejected tokens has lost too many digits

# A bucket is the exponent and the top six bits of the fraction of a float64, from 2**-80 to 1.
BUCKET_SHIFT = 46
LOWEST_BUCKET = (1023 - 80) << 6
HIGHEST_BUCKET = 1023 << 6

CHILD_FIELDS = 4  # of a heavy child in shared memory


def n_slots(n_siblings: int) -> int:
    """Sums that a block forms at once, at most."""
    return 2 * n_siblings + 3


def shared_bytes(n_siblings: int, n_threads: int, with_lists: bool) -> int:
    """Shared memory of a block: results, a part per thread of each sum, lists of heavy children."""
    slots = n_slots(n_siblings)
    lists = max(n_siblings - 2, 0) * CHILD_FIELDS * n_threads if with_lists else 0
    return 8 * (slots + slots * (n_threads + 1) + lists)


def n_sum_rows(n_siblings: int, by_token: bool) -> int:
    """Rows of the sums of one position; the first sibling's acceptance needs none."""
    levels = n_siblings - 1 if by_token else min(n_siblings - 1, 1)
    return ACC + ACC_ROWS * levels
