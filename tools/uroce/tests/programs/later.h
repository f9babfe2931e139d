/* Functions of versions whose headers Debian 12 does not have. To be included first: dlvsym(3) is GNU's. */
#ifndef LATER_H
#define LATER_H

#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>

/* The function of that name and version. */
static inline void *later(const char *name, const char *version)
{
    void *found = dlvsym(RTLD_DEFAULT, name, version);
    if (!found)
        fprintf(stderr, "there is no %s@%s\n", name, version);
    CHECK(found);
    return found;
}

#endif
