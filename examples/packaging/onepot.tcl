#%Module1.0
# Environment modules: the static program (or any other) in ROOT/onepot/VERSION/bin.
proc ModulesHelp {} {
    puts stderr "onepot shows an archive of millions of small files as a directory."
    puts stderr "onepot help lists its commands, onepot self-test tries it on this node."
}
module-whatis "archives as directories, for training jobs"

if {[info exists env(ONEPOT_MODULE_ROOT)]} {
    set root $env(ONEPOT_MODULE_ROOT)
} else {
    set root /opt
}
append root /onepot/0.1.0
prepend-path PATH $root/bin
prepend-path MANPATH $root/share/man
