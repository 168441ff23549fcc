"""Prints the directory that the package is installed into, for the prefix that is its argument.

Of the directories where this Python looks for modules: its environment's own, if it is one's (venv);
else the one below the prefix, which may be the user's own (~/.local). Debian's Python looks at neither
place that its sysconfig, and so meson, names. Where this Python looks at nothing below the prefix,
the usual name there, for PYTHONPATH."""
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
