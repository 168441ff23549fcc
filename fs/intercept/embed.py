#!/usr/bin/env python3
"""Writes a C file with the bytes of libonepot-io.so, which the program carries (preload.h)."""

import hashlib
import sys

with open(sys.argv[2], "rb") as f:
    library = f.read()
with open(sys.argv[1], "w", encoding="ascii") as out:
    out.write('#include "preload.h"\n\n')
    out.write("const unsigned char preload_library[] = {\n")
    for at in range(0, len(library), 20):
        out.write("    " + ",".join(map(str, library[at:at + 20])) + ",\n")
    out.write("    0,\n")
    out.write(f"}};\nconst size_t preload_library_bytes = {len(library)};\n")
    out.write(f'const char preload_library_name[] = "libonepot-io-{hashlib.sha256(library).hexdigest()[:24]}.so";\n')
