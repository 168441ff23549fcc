# shellcheck shell=bash
# Sourced first of all by tests in shell that mount: they run in a mount namespace of their own,
# where that can be had. Somebody else who makes one just now would hold on to a copy of a mount
# that is to end.
if [ -z "${ISOLATED-}" ] && [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null; then
    ISOLATED=1 exec unshare -m "$0" "$@"
fi
