"""``python -m decider_native``."""

from .cli import main

raise SystemExit(main())
