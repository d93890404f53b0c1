"""`python -m noria`."""

import sys

from noria.cli import main

sys.exit(main())
