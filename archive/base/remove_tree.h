/* Remove a directory with all that lies in it on its filesystem, as far as this user may. */
#ifndef ONEPOT_REMOVE_TREE_H
#define ONEPOT_REMOVE_TREE_H

/* Directories in it that their owner closed are opened. What stays, stays without an error. */
void remove_tree(const char *path);

#endif
