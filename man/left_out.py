#!/usr/bin/env python3
"""Writes a manual page without what is left out of a build.

Usage: left_out.py PAGE OUT MODULE...

In a page lines between '.\\" with MODULE' and '.\\" end' are about a module. Those of the named
modules go, and so do all such marks.
"""

import sys


def main():
    page, out, modules = sys.argv[1], sys.argv[2], sys.argv[3:]
    kept, is_in = [], True
    with open(page, encoding="utf-8") as f:
        for line in f:
            if line.startswith('.\\" with '):
                is_in = line.split()[2] not in modules
            elif line == '.\\" end\n':
                is_in = True
            elif is_in:
                kept.append(line)
    with open(out, "w", encoding="utf-8") as f:
        f.writelines(kept)


if __name__ == "__main__":
    main()
