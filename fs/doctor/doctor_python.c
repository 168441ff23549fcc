/*
 * Findings about Python: PyPI's package `onepot` is a stranger's, and imports by the name of
 * our module (whose distribution is onepot-fs).
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "doctor.h"

/*
 * Prints the path that `import onepot` would take, and of which kind it is. Imports nothing of
 * it, and looks at nothing in the current directory.
 */
#define PROBE                                                                                  \
    "cd / && exec timeout 5 python3 -c '\n"                                                    \
    "import importlib.util, os, sys\n"                                                         \
    "spec = importlib.util.find_spec(\"onepot\")\n"                                            \
    "origin = spec.origin if spec else None\n"                                                 \
    "if origin and os.path.isfile(origin):\n"                                                  \
    "    with open(origin, \"rb\") as f:\n"                                                    \
    "        kind = \"ours\" if b\"onepot._core\" in f.read(65536) else \"other\"\n"           \
    "    sys.stdout.buffer.write(kind.encode() + b\" \" + os.fsencode(origin))\n"              \
    "' 2>/dev/null </dev/null"

void doctor_python(struct findings *f)
{
    char line[PATH_MAX + 16] = "";

    f->section = "Python";
    FILE *probe = popen(PROBE, "re");
    if (!probe)
        return;
    size_t len = fread(line, 1, sizeof(line) - 1, probe);
    pclose(probe);
    line[len] = '\0';
    char *path = strchr(line, ' ');
    if (!path)
        return;
    *path++ = '\0';
    if (strcmp(line, "ours") == 0) {
        finding_add(f, FINDING_GOOD, "module", "%s", path);
    } else {
        finding_add(f, FINDING_WARNING, "module",
                    "%s: another project's package, which has the same name", path);
        finding_advise(f, "pip uninstall onepot, and install onepot-fs anew");
    }
}
