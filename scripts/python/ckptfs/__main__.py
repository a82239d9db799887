# SPDX-License-Identifier: Apache-2.0
"""python3 -m ckptfs CHECKPOINT [model] [OPTION[=VALUE]...]"""

import sys
from collections.abc import Sequence

from . import Error, open


def main(argv: Sequence[str]) -> int:
    """List the tensors of a checkpoint."""
    options = {name: value if equals else True for name, equals, value in (word.partition("=") for word in argv[2:])}
    model = options.pop("model", None) is not None
    if len(argv) < 2 or argv[1].startswith("-"):
        print("usage: python3 -m ckptfs CHECKPOINT [model] [OPTION[=VALUE]...]", file=sys.stderr)
        return 2
    try:
        with open(argv[1], **options) as ck:
            group = ck.model if model else ck
            for name in group:
                t = group.tensor(name)
                print(f"{t.dtype:<16} {str(list(t.shape)):<20} {ascii(name)[1:-1]}")
    except (Error, TypeError) as e:
        print(f"ckptfs: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
