"""Reference values in exact rationals, found by enumerating every path with independent code.

ROWS: total acceptance of recursive rejection sampling (`rrs_iid`) and the optimum with (`opt_iid`)
and without (`opt_wor`) replacement; `rrs_wor` is the former without replacement. EXACT_SHAPING: the
level S that meets itself, acceptance per sibling and in all, and the rules around it. RESISPEC: output
law and acceptance of ResiSpec, budget "minimal"; `alpha` is the total acceptance, `accepted` that of
each sibling. EAL_MARKOV: a target and a draft over three tokens whose context is 1 after the third
token and 0 otherwise; levels accepted in a tree of two siblings and three drafted levels, the bonus
not counted.
"""

from fractions import Fraction


def exact(*values: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(value) for value in values)


ROWS = [
    {
        "p": exact("309/500", "177/500", "7/250"),
        "q": exact("373/1000", "29/50", "47/1000"),
        "n": 2,
        "rrs_iid": Fraction("169277/200000"),
        "rrs_wor": Fraction("192754417/200130000"),
        "opt_iid": Fraction("988871/1000000"),
        "opt_wor": Fraction("1"),
    },
    {
        "p": exact("777/1000", "223/1000"),
        "q": exact("937/1000", "63/1000"),
        "n": 2,
        "rrs_iid": Fraction("5313/6250"),
        "rrs_wor": Fraction("1"),
        "opt_iid": Fraction("899031/1000000"),
        "opt_wor": Fraction("1"),
    },
    {
        "p": exact("1/2", "3/10", "1/5"),
        "q": exact("1/5", "1/5", "3/5"),
        "n": 2,
        "rrs_iid": Fraction("19/25"),
        "rrs_wor": Fraction("9/10"),
        "opt_iid": Fraction("21/25"),
        "opt_wor": Fraction("1"),
    },
]

RESISPEC = [
    {
        "p": exact("2/5", "3/10", "3/10"),
        "q": exact("3/5", "3/10", "1/10"),
        "n": 1,
        "fill": "capacity",
        "law": exact("26/65", "27/65", "12/65"),
        "alpha": Fraction("4/5"),
    },
    {
        "p": exact("2/5", "3/10", "3/10"),
        "q": exact("3/5", "3/10", "1/10"),
        "n": 1,
        "fill": "index",
        "law": exact("2/5", "12/25", "3/25"),
        "alpha": Fraction("4/5"),
    },
    {
        "p": exact("2/5", "3/10", "3/10"),
        "q": exact("3/5", "3/10", "1/10"),
        "n": 1,
        "fill": "water",
        "law": exact("2/5", "9/20", "3/20"),
        "alpha": Fraction("4/5"),
    },
    {
        "p": exact("1/4", "1/4", "1/4", "1/4"),
        "q": exact("7/10", "1/10", "1/10", "1/10"),
        "n": 3,
        "fill": "capacity",
        "law": exact("1/4", "1/4", "1/4", "1/4"),
        "alpha_of_specinfer": True,
    },
    {
        "p": exact("1/4", "1/4", "1/4", "1/4"),
        "q": exact("7/10", "1/10", "1/10", "1/10"),
        "n": 3,
        "fill": "water",
        "law": exact("1/4", "1/4", "1/4", "1/4"),
        "alpha_of_specinfer": True,
    },
    {
        "p": exact("1/4", "1/4", "1/2"),
        "q": exact("1/2", "1/2", "0"),
        "n": 1,
        "fill": "capacity",
        "law": exact("2/5", "2/5", "1/5"),
        "accepted": exact("1/2"),
    },
    {
        "p": exact("1/4", "1/4", "1/2"),
        "q": exact("1/2", "1/2", "0"),
        "n": 2,
        "fill": "capacity",
        "law": exact("7/15", "7/15", "1/15"),
        "accepted": exact("1/2", "1/4"),
    },
    {
        "p": exact("1/4", "1/4", "1/2"),
        "q": exact("1/2", "1/2", "0"),
        "n": 3,
        "fill": "capacity",
        "law": exact("22/45", "22/45", "1/45"),
        "accepted": exact("1/2", "1/4", "1/8"),
    },
    {
        "p": exact("1/4", "1/4", "1/2"),
        "q": exact("1/2", "1/2", "0"),
        "n": 3,
        "fill": "water",
        "law": exact("1/2", "1/2", "0"),
        "accepted": exact("1/2", "1/4", "1/8"),
    },
    {
        "p": exact("1/6", "1/3", "1/2"),
        "q": exact("1/2", "1/3", "1/6"),
        "n": 1,
        "fill": "capacity",
        "law": exact("1/6", "1/2", "1/3"),
        "accepted": exact("2/3"),
    },
    {
        "p": exact("1/6", "1/3", "1/2"),
        "q": exact("1/2", "1/3", "1/6"),
        "n": 2,
        "fill": "capacity",
        "law": exact("1/6", "29/54", "8/27"),
        "accepted": exact("2/3", "1/6"),
    },
    {
        "p": exact("1/6", "1/3", "1/2"),
        "q": exact("1/2", "1/3", "1/6"),
        "n": 3,
        "fill": "capacity",
        "law": exact("1/6", "89/162", "23/81"),
        "accepted": exact("2/3", "1/6", "1/12"),
    },
    {
        "p": exact("1/6", "1/3", "1/2"),
        "q": exact("1/2", "1/3", "1/6"),
        "n": 2,
        "fill": "water",
        "law": exact("1/6", "5/9", "5/18"),
        "accepted": exact("2/3", "1/6"),
    },
    {
        "p": exact("1/6", "1/3", "1/2"),
        "q": exact("1/2", "1/3", "1/6"),
        "n": 2,
        "fill": "index",
        "law": exact("1/6", "7/12", "1/4"),
        "accepted": exact("2/3", "1/6"),
    },
]

EAL_MARKOV = {
    "p0": exact("1/2", "1/3", "1/6"),
    "q0": exact("1/3", "1/2", "1/6"),
    "p1": exact("1/5", "3/10", "1/2"),
    "q1": exact("2/5", "1/5", "2/5"),
    "siblings": 2,
    "drafted_levels": 3,
    "accepted_levels_specinfer": Fraction("4369211/1822500"),
    "accepted_levels_resispec": Fraction("3073003/1215000"),
}

EXACT_SHAPING = [
    {
        "p": exact("1/6", "1/3", "1/2"),
        "q": exact("1/2", "1/3", "1/6"),
        "n": 2,
        "S": Fraction("7/4"),
        "accepted": exact("1/4", "13/24"),
        "total": Fraction("19/24"),
        "rrs": Fraction("13/18"),
        "optimum": Fraction("29/36"),
    },
    {
        "p": exact("1/6", "1/3", "1/2"),
        "q": exact("1/2", "1/3", "1/6"),
        "n": 3,
        "S": Fraction("19/8"),
        "accepted": exact("1/6", "7/24", "7/16"),
        "total": Fraction("43/48"),
        "rrs": Fraction("83/108"),
        "optimum": Fraction("199/216"),
    },
    {
        # plain fixed-point iteration cycles here
        "p": exact("3/4", "1/4", "0"),
        "q": exact("3/4", "3/20", "1/10"),
        "n": 4,
        "S": Fraction("557/335"),
        "total": Fraction("1674/1675"),
        "optimum": Fraction("9999/10000"),
    },
    {
        # more than one S meets itself here
        "p": exact("2/5", "3/5"),
        "q": exact("1/2", "1/2"),
        "n": 2,
        "total": Fraction("1"),
    },
]
