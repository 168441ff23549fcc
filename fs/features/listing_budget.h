/*
 * How many names the kernel may receive with their attributes. Each such entry of a listing
 * makes an inode and a dentry, which stay. They are worth it, since they save a look-up, but a
 * listing of many millions would fill the memory of the job with them. So listings carry
 * attributes while these fit a part of the budget, and only names from then on (an entry of
 * READDIRPLUS with node id 0).
 *
 * An entry counts once, however often it is listed: there is a bit for each. From any thread.
 */
#ifndef ONEPOT_LISTING_BUDGET_H
#define ONEPOT_LISTING_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct listing_budget;

/*
 * For an archive of this many entries, in a job with this much memory. Free it with free(3).
 * -ENOMEM.
 */
int listing_budget_new(uint32_t entries, uint64_t memory_bytes,
                       struct listing_budget **ret_budget);
bool listing_budget_is_left(const struct listing_budget *budget);
/* A listing carries the attributes of the entries [from, to). */
void listing_budget_spend(struct listing_budget *budget, uint32_t from, uint32_t to);

#endif
