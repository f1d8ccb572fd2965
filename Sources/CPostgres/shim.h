// libpq, from Debian's libpq-dev. Only CoroutinePostgres imports it, and only with the trait Postgres, so nothing else
// needs it. Debian has the header in a folder that is not searched, other systems in one that is.
#ifndef CPOSTGRES_SHIM_H
#define CPOSTGRES_SHIM_H

#if __has_include(<libpq-fe.h>)
#include <libpq-fe.h>
#elif __has_include(<postgresql/libpq-fe.h>)
#include <postgresql/libpq-fe.h>
#else
#error "The trait Postgres needs libpq: install libpq-dev, or run scripts/setup postgres"
#endif

#endif
