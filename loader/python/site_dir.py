"""Prints the directory to install the package into, for the prefix given as argument.

It is one of the directories where this Python looks for modules: that of a virtual environment, else
one below the prefix, which may be the user's (~/.local). meson's own answer comes from sysconfig, and
Debian's Python looks at neither directory named there. If this Python looks nowhere below the prefix,
the usual directory is printed, and PYTHONPATH has to name it."""
import os
import site
import sys


def below(prefix):
    found = site.getsitepackages() + [site.getusersitepackages()] * bool(site.ENABLE_USER_SITE)
    return [path for path in found if os.path.relpath(path, prefix).startswith("lib")]


def main():
    prefix = sys.argv[1]
    usual = os.path.join(prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
    found = below(sys.prefix if sys.prefix != sys.base_prefix else prefix)
    if not found:
        print("%s looks for modules at nothing below %s: set PYTHONPATH=%s"
              % (sys.executable, prefix, usual), file=sys.stderr)
    print((found or [usual])[0])


if __name__ == "__main__":
    main()
