#!/usr/bin/env python3
"""Batches in a GPU's memory under JAX, which has streams of its own: each array shows its batch,
also while the loader goes on and memory is used again. Exit status 77 where there is no JAX or
no GPU; the reason is printed."""
import os
import subprocess
import sys
import tempfile


def skip(why):
    print("skipped: %s" % why)
    sys.exit(77)


try:
    import jax
    import jax.numpy as jnp
except ImportError:
    skip("there is no jax")
try:
    DEVICE = jax.devices("gpu")[0]
except RuntimeError as e:
    skip("jax sees no GPU: %s" % str(e).splitlines()[0])

import onepot

FILES, SIZE = 512, 64 << 10


def main():
    with tempfile.TemporaryDirectory(prefix="onepot-jax.") as work:
        os.environ["XDG_CACHE_HOME"] = os.path.join(work, "cache")
        tree, tar = os.path.join(work, "tree"), os.path.join(work, "a.tar")
        os.mkdir(tree)
        for i in range(FILES):
            with open(os.path.join(tree, "%04d.bin" % i), "wb") as f:
                f.write(bytes([i % 251]) * SIZE)
        subprocess.run([os.environ["ONEPOT"], "pack", "-o", tar, tree], check=True)
        busy = jnp.ones((4096, 4096), device=DEVICE)
        sums = []
        loader = onepot.Loader(onepot.Archive(tar), 16, 0, 1, device="cuda:0", memory=32 << 20)
        for _ in range(4):
            for batch in loader:
                pixels = jax.dlpack.from_dlpack(batch.data)
                indices = jnp.copy(jax.dlpack.from_dlpack(batch.indices))
                del batch
                busy = busy @ busy * 1e-4  # the host is far ahead of the GPU
                sums.append((pixels.astype(jnp.int32).sum(axis=1), indices))
                del pixels
        for rows, indices in sums:
            assert rows.tolist() == [i % 251 * SIZE for i in indices.tolist()]
    print("%d batches as they should be" % len(sums))


main()
