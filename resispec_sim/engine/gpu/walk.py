"""The walk: one block per part of the children of a state of one rejection, any number of siblings.

The block goes down through heavy children one at a time and closes the last level with all its
threads. Its stack is small and explicit: every thread holds the same copy of it. Children are opened
a wave at a time, one per thread; light ones, from which only the rejected tokens themselves can be
rejected again, are closed by their thread on the spot, heavy ones go to a list in shared memory.

Legend: L = level (rejections so far), E = rejected tokens, k = index of a weight in ratio order.
"""

from __future__ import annotations

from numba import cuda, float64, int64

from resispec_sim.engine.gpu.device_math import (
    clipped_mass,
    contains,
    count_below,
    light_terms,
    repeat_share,
    share_of,
)
from resispec_sim.engine.gpu.last_level import close_capacity, close_water
from resispec_sim.engine.gpu.layout import (
    ACC_CW,
    ACCEPTED,
    CHILD_FIELDS,
    COUNT_BIG,
    CW,
    FULL_W,
    INDEX,
    LEAST_FREE,
    LIGHTEST,
    MAX_SIBLINGS,
    N_DRAFTED,
    N_ZERO,
    POINT,
    RHO,
    SCALE,
    SPREAD,
    STEPS,
    SUFFIX,
    SUFFIX_LOW,
    WEIGHT,
    WEIGHT_BIG,
    P,
    Q,
)
from resispec_sim.engine.gpu.scatter import (
    acc_row,
    add_acceptance,
    add_split,
    add_total,
    emit_state,
    leave_out_accepted,
    own_mass,
    sum_slots,
)

DEPTH = MAX_SIBLINGS
SQUARE = DEPTH * DEPTH
TOKENS = DEPTH + 1  # a thread may put its own last token behind those that all share


@cuda.jit
def walk(
    tables,
    buckets,
    sizes,
    first,
    sums,
    totals,
    parents,
    starts,
    chunk,
    children,
    n,
    want_law,
    water,
    by_token,
    max_steps,
):
    """Walk everything below a part of the children of one state; grid (items,).

    `parents` (items,) is position times V plus token of the state, `starts` (items,) its first
    child, `chunk` the number of children. A position that passed `max_steps` is left as it is: its
    count of steps tells.
    """
    tid = cuda.threadIdx.x
    n_threads = cuda.blockDim.x
    stride = n_threads + 1
    n_all = 2 * n + 3
    shared = cuda.shared.array(0, float64)
    results = shared[:n_all]
    parts = shared[n_all : n_all + n_all * stride]
    heavy = shared[n_all + n_all * stride :]

    w = cuda.local.array(DEPTH, float64)
    share = cuda.local.array(DEPTH, float64)
    spread = cuda.local.array(DEPTH, float64)
    low_cw = cuda.local.array(DEPTH, float64)
    accepted = cuda.local.array(DEPTH, float64)
    low_w = cuda.local.array(SQUARE, float64)  # by level of the state and of the sibling
    left_out = cuda.local.array(SQUARE, float64)  # by level of the state and place in E
    ks = cuda.local.array(DEPTH, int64)
    n_tok = cuda.local.array(DEPTH, int64)
    is_new = cuda.local.array(DEPTH, int64)
    pos = cuda.local.array(DEPTH, int64)
    end = cuda.local.array(DEPTH, int64)
    listed = cuda.local.array(DEPTH, int64)
    taken = cuda.local.array(DEPTH, int64)
    tokens = cuda.local.array(TOKENS, int64)

    n_vocab = children.shape[1]
    item = cuda.blockIdx.x
    b = parents[item] // n_vocab
    x1 = parents[item] - b * n_vocab
    total = totals[b]
    if tid == 0:
        results[0] = total[STEPS]
    cuda.syncthreads()
    steps = results[0]
    cuda.syncthreads()
    if steps > max_steps:
        return
    table = tables[b]
    bucket = buckets[b]
    out = sums[b]
    n_zero = int64(sizes[b, N_ZERO])
    n_drafted = int64(sizes[b, N_DRAFTED])
    rho_low = table[RHO, 0]
    drafted = table[SUFFIX, 0]
    drafted_gap = (1.0 - drafted) - table[SUFFIX_LOW, 0]
    scale = first[b, SCALE, x1]
    last = n - 1 if want_law else n - 2
    own_steps = 0.0

    tokens[0] = x1
    w[1] = first[b, WEIGHT, x1]
    ks[1] = int64(first[b, INDEX, x1])
    n_tok[1] = 1
    is_new[1] = 1
    share[1] = 0.0  # the first state's own term waits for the other blocks
    pos[1] = starts[item]
    end[1] = min(pos[1] + chunk, ks[1] + 1)
    for i in range(DEPTH):
        accepted[i] = 0.0
    level = 1
    entered = True
    if want_law and last == 1:
        # two siblings: the item itself is the last level
        if water:
            close_water(
                out, total, table, bucket, n_zero, n_drafted, tokens, 1, w[1], ks[1], pos[1], end[1],
                scale, parts, results, tid, n_threads,
            )  # fmt: skip
        else:
            below = close_capacity(
                out, table, bucket, n_zero, tokens, 1, w[1], ks[1], pos[1], end[1],
                scale, parts, results, tid, n_threads,
            )  # fmt: skip
            if tid == 0:
                add_split(first[b], SPREAD, x1, below, COUNT_BIG)
        own_steps += end[1] - pos[1]
        level = 0

    while level > 0:
        wl = w[level]
        kl = ks[level]
        nt = n_tok[level]
        if entered:
            entered = False
            spread[level] = 0.0
            low_cw[level] = 0.0
            listed[level] = 0
            taken[level] = 0
            for i in range(DEPTH):
                low_w[level * DEPTH + i] = 0.0
                left_out[level * DEPTH + i] = 0.0

        if taken[level] < listed[level]:
            # the next heavy child of the last wave
            at = ((level - 1) * n_threads + taken[level]) * CHILD_FIELDS
            taken[level] += 1
            code = int64(heavy[at])
            child_new = code >= 0
            nc = nt
            if child_new:
                tokens[nt] = code
                nc += 1
            wc = heavy[at + 1]
            kc = int64(heavy[at + 2])
            tc = heavy[at + 3]
            if level + 1 < last or not want_law:
                level += 1
                w[level] = wc
                ks[level] = kc
                share[level] = tc
                n_tok[level] = nc
                is_new[level] = 1 if child_new else 0
                pos[level] = 0
                end[level] = kc + nc
                entered = True
                continue
            own_steps += kc + nc
            if water:
                close_water(
                    out, total, table, bucket, n_zero, n_drafted, tokens, nc, wc, kc, 0, kc + nc,
                    scale, parts, results, tid, n_threads,
                )  # fmt: skip
            else:
                below = close_capacity(
                    out, table, bucket, n_zero, tokens, nc, wc, kc, 0, kc + nc,
                    scale, parts, results, tid, n_threads,
                )  # fmt: skip
                emit_state(
                    out, table, tokens, nc, child_new, kc, wc, scale, tc, below, tid, n_threads
                )
                if tid == 0:
                    spread[level] += tc * below
            continue

        if pos[level] < end[level] and own_steps <= max_steps:
            # open the next wave of children, one per thread
            at = pos[level] + tid
            pos[level] += n_threads
            own_steps += min(n_threads, end[level] - at + tid)
            fresh = at < kl
            x = int64(0)
            wx = 0.0
            px = 0.0
            kx = int64(0)
            mass = 0.0
            q_rejected = 0.0
            for i in range(nt):
                q_rejected += table[Q, tokens[i]]
            if at < end[level]:
                if fresh:
                    x = at
                    if not contains(tokens, nt, x):
                        px = table[P, x]
                        wx = wl * table[Q, x] - px
                        q_rejected += table[Q, x]
                else:
                    x = tokens[at - kl]
                    wx = wl * table[Q, x]
            is_heavy = 0
            if wx > LIGHTEST:
                free = max(drafted - q_rejected, 0.0)
                light = n_zero == 0 and wx <= rho_low
                if water:
                    light = light and free > LEAST_FREE and wx <= rho_low * free
                if light:
                    gap = drafted_gap + q_rejected
                    weight = wx
                    for sibling in range(level + 1, n):
                        low_w[level * DEPTH + sibling] += weight
                        accepted[sibling] += weight * free
                        if fresh:
                            leave_out_accepted(
                                out, acc_row(sibling, by_token), x, scale * weight * table[Q, x]
                            )
                        weight *= q_rejected
                    if want_law and water:
                        leaf = wx
                        for _ in range(n - level - 1):
                            leaf *= q_rejected
                        low_cw[level] += leaf / free
                        if fresh:
                            add_split(out, FULL_W, x, scale * leaf / free, WEIGHT_BIG)
                    elif want_law:
                        t_sum = 0.0
                        c_sum = 0.0
                        n_off = nt + 1 if fresh else nt
                        for i in range(n_off):
                            e = tokens[i] if i < nt else x
                            again = repeat_share(table[Q, e], free, gap)
                            t_sum += again
                            c_sum += (1.0 - again) * table[Q, e]
                        t = share_of(wx * gap, wl - px - wx * free)
                        cw, below = light_terms(wx, n - level - 1, q_rejected, c_sum, t_sum)
                        cw += (1.0 - t) * below * wx
                        low_cw[level] += cw
                        spread[level] += t * below
                        if fresh:
                            gone = cw * table[Q, x] + t * below * px
                            add_split(out, POINT, x, scale * gone, WEIGHT_BIG)
                else:
                    kx = count_below(wx, table, bucket)
                    own = own_mass(wx, x, table) if fresh else 0.0
                    mass = max(clipped_mass(wx, kx, table, tokens, nt) - own, 0.0)
                    row = acc_row(level + 1, by_token)
                    accepted[level + 1] += mass
                    add_acceptance(out, row, kx, scale, wx)
                    if fresh:
                        leave_out_accepted(out, row, x, scale * own)
                    for i in range(nt):
                        left_out[level * DEPTH + i] += own_mass(wx, tokens[i], table)
                    if want_law or level < last:
                        is_heavy = 1
            # Places in the list by thread, so that its order never changes.
            parts[tid] = is_heavy
            cuda.syncthreads()
            n_heavy = 0
            place = 0
            for i in range(n_threads):
                if i == tid:
                    place = n_heavy
                n_heavy += int64(parts[i])
            if is_heavy == 1:
                at = ((level - 1) * n_threads + place) * CHILD_FIELDS
                heavy[at] = x if fresh else -1
                heavy[at + 1] = wx
                heavy[at + 2] = kx
                heavy[at + 3] = share_of(wx - mass, wl - px - mass)
            listed[level] = n_heavy
            taken[level] = 0
            cuda.syncthreads()
            continue

        # All children are done: add up what the threads hold of them.
        parts[tid] = spread[level]
        parts[stride + tid] = low_cw[level]
        n_slots = 2
        for i in range(nt):
            parts[(n_slots + i) * stride + tid] = left_out[level * DEPTH + i]
        n_slots += nt
        for sibling in range(level + 1, n):
            parts[(n_slots + sibling - level - 1) * stride + tid] = low_w[level * DEPTH + sibling]
        n_slots += n - level - 1
        sum_slots(parts, results, n_slots, tid, n_threads)
        below = results[0]
        low = results[1]
        if tid == 0:
            add_split(out, CW, 0, scale * low, WEIGHT_BIG)
        for i in range(tid, nt, n_threads):
            e = tokens[i]
            add_split(out, FULL_W, e, scale * low, WEIGHT_BIG)
            leave_out_accepted(out, acc_row(level + 1, by_token), e, scale * results[2 + i])
        for sibling in range(level + 1 + tid, n, n_threads):
            weight = results[2 + nt + sibling - level - 1]
            row = acc_row(sibling, by_token)
            add_split(out, row + ACC_CW, 0, scale * weight, WEIGHT_BIG)
            for i in range(nt):
                leave_out_accepted(out, row, tokens[i], scale * weight * table[Q, tokens[i]])
        if want_law and not water:
            if level > 1:
                emit_state(
                    out, table, tokens, nt, is_new[level] == 1, kl, wl, scale, share[level], below,
                    tid, n_threads,
                )  # fmt: skip
                if tid == 0:
                    spread[level - 1] += share[level] * below
            elif tid == 0:
                add_split(first[b], SPREAD, x1, below, COUNT_BIG)
        level -= 1

    for sibling in range(n):
        parts[sibling * stride + tid] = accepted[sibling]
    sum_slots(parts, results, n, tid, n_threads)
    for sibling in range(2 + tid, n, n_threads):
        add_total(total, ACCEPTED + 2 * sibling, scale * results[sibling], WEIGHT_BIG)
    if tid == 0:
        cuda.atomic.add(total, STEPS, own_steps)
