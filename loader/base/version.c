/*
 * The library's version.
 */
#include "onepot.h"

const char *onepot_version(void)
{
    return ONEPOT_VERSION;
}
