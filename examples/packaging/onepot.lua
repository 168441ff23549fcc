-- Lmod: the static program (or any other) in ROOT/onepot/VERSION/bin.
help([[onepot shows an archive of millions of small files as a directory.
onepot help lists its commands, onepot self-test tries it on this node.]])
whatis("Name: onepot")
whatis("Version: " .. myModuleVersion())
whatis("Description: archives as directories, for training jobs")

local root = pathJoin(os.getenv("ONEPOT_MODULE_ROOT") or "/opt", myModuleName(), myModuleVersion())
prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("MANPATH", pathJoin(root, "share", "man"))
