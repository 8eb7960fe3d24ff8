"""``python -m resispec_sim`` is the `resispec` command."""

from resispec_sim.cli import main

if __name__ == "__main__":
    main()
