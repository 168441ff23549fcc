# Spack: in a repository of your own, packages/onepot/package.py. The source lies beside it, or in
# a mirror, until there is an address to fetch it from.
from spack.package import *


class Onepot(MesonPackage):
    """Mounts archives of millions of small files as directories, for training jobs."""

    homepage = "https://example.org/onepot"
    manual_download = True

    maintainers("onepot-developers")

    version("0.1.0", sha256="@SHA256@")

    license("Apache-2.0")

    variant("cuda", default=True, description="batches in the memory of GPUs")
    variant("python", default=True, description="the Python module")

    depends_on("c", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libarchive")
    depends_on("zstd")
    depends_on("xxhash")
    depends_on("squashfuse")
    depends_on("libdeflate")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("zlib-api")
    depends_on("isa-l")
    depends_on("lzo")
    depends_on("lz4")
    depends_on("xz")
    depends_on("bzip2")
    depends_on("utf8proc")
    depends_on("cuda@11.8:", when="+cuda", type=("build", "link"))
    depends_on("python@3.9:", when="+python", type=("build", "link", "run"))

    extends("python", when="+python")

    def url_for_version(self, version):
        return f"file://{self.package_dir}/onepot-{version}.tar.gz"

    def meson_args(self):
        args = ["-Dauto_features=enabled", "-Dtests=disabled", "-Dbench=false", "-Dmpi=disabled"]
        if self.spec.satisfies("+python"):
            args.append(f"-Dpython-dir={python_platlib}")
        else:
            args.append("-Dpython=disabled")
        cuda = self.spec["cuda"].prefix if self.spec.satisfies("+cuda") else "none"
        return args + [f"-Dcuda-home={cuda}"]
